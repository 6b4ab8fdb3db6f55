"""One line of a training file: a row in one of the known formats, or the reason why not. Pure.

Every row is judged by itself and keeps its own types: nothing is inferred from the rows before it,
no turn is left out, and a key that is not understood is reported, never lost without a word.
"""

from collections.abc import Callable
from typing import Any

from .messages import read_messages
from .other_formats import read_alpaca, read_prompt_completion, read_sharegpt, read_text
from .row_json import read_object
from .row_types import ROW_FORMATS, Row, RowProblem, Unusable

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
        return _read(read_object(line))
    except Unusable as unusable:
        return unusable.problem


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
    lists = [key for key, value in row.items() if _holds_objects(value)]
    if {"role", "content"} <= given:
        said += '; is it a message? A row is {"messages": [...]}'
    if len(lists) == 1:
        said += f"; do the rows lie in its key {lists[0]!r}? Write that list alone"
    raise Unusable("unknown_format", said)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _refuse_preferences(row: dict[str, Any], given: set[str]) -> None:
    """Rows that say what not to answer too: to train on all they hold would teach the wrong."""
    judged = {"prompt", "completion"} <= given and isinstance(row.get("label"), bool)
    if judged or any(keys <= given for keys in PREFERENCES):
        said = "the row holds preferences, which supervised training cannot use; keep the answers "
        raise Unusable("unsupported_format", said + "that are good, as messages or completions")
