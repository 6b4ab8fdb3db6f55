"""Training files as rows, whatever holds them: lines or one JSON array, plain or compressed.

What a file is, its first bytes say, never its name. Rows stream: memory holds one row and a buffer.
"""

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, cast

from .data_report import DataProblem, Place
from .row_types import MAX_LINE_BYTES

READ_BYTES = 256 * 1024
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
OTHER_CONTENTS = (  # first bytes, and the way out
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd, which is not read; unpack it with zstd -d, or "
     "compress it with gzip"),
    (b"PK\x03\x04", "is a zip archive; unpack it"),
    (b"BZh", "is compressed with bzip2; unpack it, or compress it with gzip"),
    (b"\xfd7zXZ\x00", "is compressed with xz; unpack it, or compress it with gzip"),
    (b"PAR1", "is Parquet; write its rows as JSON, one object a line"),
    (b"\xff\xfe", "is UTF-16; write it as UTF-8"),
    (b"\xfe\xff", "is UTF-16; write it as UTF-8"),
    (b"{\x00", "is UTF-16; write it as UTF-8"),
    (b"[\x00", "is UTF-16; write it as UTF-8"),
    (b"version https://git-lfs", "is a pointer of Git LFS, not the data; fetch it: git lfs pull"),
    (b"<!", "is a web page, not the data; download the file itself"),
    (b"<html", "is a web page, not the data; download the file itself"),
    (b"ARROW1", "is an Arrow file; write its rows as JSON, one object a line"),
)  # fmt: skip
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{},]', re.DOTALL)
QUOTE, COMMA, CLOSE = b'",]'
OPENING, CLOSING = b"[{", b"]}"


@dataclass(frozen=True, slots=True)
class RowText:
    """The bytes of a row, and where they are."""

    place: Place
    data: bytes


class RowFile:
    """The rows of a file, once and in order. A context manager.

    DataProblem when the file is of another kind, damaged or cut off. A line or item beyond
    MAX_LINE_BYTES is never held: of a line its beginning comes, an item ends the reading.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self._measured = _Measured(path)
        self._taken = 0  # bytes of the rows that came, unpacked
        try:
            self._content, packing = self._unpacked()
            begin = self._begin().lstrip()
            self._is_array = begin.startswith(b"[")
            self._check_one_line(begin)
        except BaseException:
            self._measured.close()
            raise
        self.form = ("JSON array" if self._is_array else "JSONL") + packing

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._content.close()
        self._measured.close()

    def __iter__(self) -> Iterator[RowText]:
        with self._blaming():
            for text in self._items() if self._is_array else self._lines():
                self._taken += len(text.data)
                yield text

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that were read so far, as they lie on disk."""
        return self._measured.num_bytes

    @property
    def share_taken(self) -> float:
        """How much of the file the rows that came are, about: 0 to 1."""
        packed = self.form.endswith("gzip")
        return min(1.0, (self.bytes_read if packed else self._taken) / max(1, self.size))

    def describe(self) -> dict[str, Any]:
        """Name, bytes, SHA-256 of what was read, and the form of the file."""
        return {
            "name": self.path.name,
            "bytes": self.size,
            "sha256": self._measured.digest.hexdigest(),
            "form": self.form,
        }

    def _unpacked(self) -> "tuple[io.BufferedReader[Any], str]":
        plain = io.BufferedReader(self._measured, READ_BYTES)
        first = plain.peek(READ_BYTES)
        for magic, what in OTHER_CONTENTS:
            if first.startswith(magic):
                raise DataProblem(f"{self.path.name} {what}")
        if not first.startswith(GZIP):
            return plain, ""
        unpacking = gzip.GzipFile(fileobj=cast(IO[bytes], plain))
        return io.BufferedReader(cast(io.RawIOBase, unpacking), READ_BYTES), ", gzip"

    def _begin(self) -> bytes:
        with self._blaming():
            return self._content.peek(READ_BYTES).removeprefix(BYTE_ORDER_MARK)

    def _check_one_line(self, begin: bytes) -> None:
        if re.match(rb'\{[ \t\r]*\n\s*"', begin):
            raise DataProblem(
                f"{self.path.name}: its first object is spread over several lines; write one "
                "object a line (jq -c does it), or all rows in one array"
            )

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        try:
            yield
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            reason = f"{self.path.name}: its gzip data is damaged or cut off ({error})"
            raise DataProblem(f"{reason}; compress it anew") from error

    def _lines(self) -> Iterator[RowText]:
        """Lines with their numbers; of one above the limit, enough to see that it is too long."""
        number = 0
        while line := self._content.readline(MAX_LINE_BYTES + 1):
            number += 1
            yield RowText(Place(file=self.path.name, line=number), line)
            while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                line = self._content.readline(MAX_LINE_BYTES + 1)

    def _items(self) -> Iterator[RowText]:
        items = split_array(self._content.read, name=self.path.name)
        for number, (line, item) in enumerate(items, 1):
            yield RowText(Place(file=self.path.name, line=line, item=number), item)


def split_array(read: Callable[[int], bytes], *, name: str) -> Iterator[tuple[int, bytes]]:
    """The items of a JSON array, each with the line that it begins on; whether they are JSON is
    not asked, only where they end. DataProblem when the array does not end, or more follows.

    `read` gives the next bytes, at most so many; nothing at the end.
    """
    text = read(READ_BYTES)
    begin = at = text.index(b"[") + 1
    line = 1 + text.count(b"\n", 0, begin)
    depth = 0
    while True:
        for match in TOKEN.finditer(text, at):
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


class _Measured(io.RawIOBase):
    """A file that counts and hashes what is read of it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = path.open("rb", buffering=0)
        self.digest = hashlib.sha256()
        self.num_bytes = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as the file goes; the number of bytes."""
        count = self._file.readinto(buffer)
        self.digest.update(memoryview(buffer)[:count])
        self.num_bytes += count
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
