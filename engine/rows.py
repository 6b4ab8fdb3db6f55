"""One line of a training file: a row in one of the known formats, or the reason why not. Pure.

Every row is judged by itself and keeps its own types: nothing is inferred from the rows before it,
no turn is left out, and a key that is not understood is reported, never lost without a word.
"""

from collections.abc import Callable
from typing import Any

import orjson

from .messages import read_messages
from .other_formats import read_alpaca, read_prompt_completion, read_sharegpt, read_text
from .row_types import MAX_LINE_BYTES, ROW_FORMATS, Row, RowProblem, Unusable, kind

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_KEYS_SHOWN = 8
# By the keys that betray it; the first that fits. A key that is null is not there: tools that merge
# tables of several formats write it so.
READERS: tuple[tuple[set[str], Callable[[dict[str, Any]], Row]], ...] = (
    ({"messages"}, read_messages),
    ({"conversations"}, read_sharegpt),
    ({"prompt", "completion"}, read_prompt_completion),
    ({"instruction", "output"}, read_alpaca),
    ({"text"}, read_text),
)
PREFERENCES = ({"chosen", "rejected"}, {"preferred_output"}, {"non_preferred_output"})


def parse_row(line: bytes) -> Row | RowProblem:
    """Read one JSON object: chat messages, prompt/completion, text, alpaca or sharegpt."""
    try:
        return _read(_object(line))
    except Unusable as unusable:
        return unusable.problem


def _object(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        limit = f"longer than {MAX_LINE_BYTES // 2**20} MiB"
        raise Unusable("line_too_long", f"the line is {limit}; split the row")
    try:
        row = orjson.loads(line.removeprefix(BYTE_ORDER_MARK))
    except orjson.JSONDecodeError as error:
        said = f"not valid JSON: {error.msg} (column {error.colno}); wanted one object a line"
        raise Unusable("invalid_json", said) from error
    if not isinstance(row, dict):
        raise Unusable("not_an_object", f"the row is {kind(row)}; wanted an object")
    return row


def _read(row: dict[str, Any]) -> Row:
    given = {key for key, value in row.items() if value is not None}
    if "messages" not in given:
        _refuse_preferences(row, given)
    for keys, read in READERS:
        if keys <= given:
            return read(row)
    keys_seen = ", ".join(sorted(row)[:MAX_KEYS_SHOWN]) or "none"
    more = ", …" if len(row) > MAX_KEYS_SHOWN else ""
    wanted = "; ".join(f"{name} ({keys})" for name, keys in ROW_FORMATS.items())
    said = f"the row's format is not known (keys seen: {keys_seen}{more}); accepted: {wanted}"
    raise Unusable("unknown_format", said)


def _refuse_preferences(row: dict[str, Any], given: set[str]) -> None:
    """Rows that say what not to answer too: to train on all they hold would teach the wrong."""
    judged = {"prompt", "completion"} <= given and isinstance(row.get("label"), bool)
    if judged or any(keys <= given for keys in PREFERENCES):
        said = "the row holds preferences, which supervised training cannot use; keep the answers "
        raise Unusable("unsupported_format", said + "that are good, as messages or completions")
