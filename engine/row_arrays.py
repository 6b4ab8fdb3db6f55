"""One JSON array as its items, whatever its size: memory holds one item and a buffer. Pure."""

import re
from collections.abc import Callable, Iterator

from .data_report import DataProblem
from .row_types import MAX_LINE_BYTES

READ_BYTES = 256 * 1024
ASK_EVERY = 65_536  # signs
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
QUOTE, COMMA, CLOSE = b'",]'
OPENING, CLOSING = b"[{", b"]}"


def split_array(
    read: Callable[[int], bytes], *, name: str, enough: Callable[[], bool] = lambda: False
) -> Iterator[tuple[int, bytes]]:
    """The items of a JSON array, each with the line that it begins on; whether they are JSON is
    not asked, only where they end. DataProblem when the array does not end, or more follows.

    `read` gives the next bytes, at most so many; nothing at the end. `enough` is asked now and then
    within an item, too; where it says so, the items end.
    """
    text = read(READ_BYTES)
    begin = at = text.index(b"[") + 1
    line = 1 + text.count(b"\n", 0, begin)
    depth = 0
    while True:
        for number, match in enumerate(TOKEN.finditer(text, at)):
            if number % ASK_EVERY == ASK_EVERY - 1 and enough():
                return
            at, sign = match.start(), text[match.start()]
            if sign == QUOTE and match.end() - at == 1:
                break  # the string goes on beyond what was read
            ends = depth == 0 and sign in (COMMA, CLOSE)
            if ends:
                item = text[begin:at]
                if sign == COMMA or item.strip():
                    yield line + _blank_lines(item), item.strip()
                line += item.count(b"\n")
                begin = match.end()
            if ends and sign == CLOSE:
                _check_nothing_follows(text[begin:], read, name=name, line=line)
                return
            depth += sign in OPENING
            depth -= sign in CLOSING and depth > 0
            at = match.end()
        text, at, begin = text[begin:], at - begin, 0
        more = read(max(READ_BYTES, len(text))) if len(text) <= MAX_LINE_BYTES else b""
        if not more:
            if enough():
                return
            raise _unended(text, name=name, line=line)
        text += more


def _blank_lines(item: bytes) -> int:
    return item.count(b"\n", 0, len(item) - len(item.lstrip()))


def _unended(text: bytes, *, name: str, line: int) -> DataProblem:
    where = f"{name}: the item that begins on line {line + _blank_lines(text)}"
    if len(text) > MAX_LINE_BYTES:
        limit = f"{MAX_LINE_BYTES // 2**20} MiB"
        return DataProblem(f"{where} is longer than {limit}; split it, or close its brackets")
    return DataProblem(f"{where} is the last, and the array does not end; is the file cut off?")


def _check_nothing_follows(
    rest: bytes, read: Callable[[int], bytes], *, name: str, line: int
) -> None:
    while rest or (rest := read(READ_BYTES)):
        if rest.strip():
            raise DataProblem(
                f"{name}: the array ends on line {line}, but more follows; wanted one array of "
                "rows, or one JSON object a line"
            )
        rest = b""
