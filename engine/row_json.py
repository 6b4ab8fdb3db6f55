"""The JSON of one row, read strictly: nothing in it is lost, rounded or guessed. Pure.

Two parsers read it. The strict one refuses what is not JSON (NaN, half a character, bad UTF-8). The
other keeps integers of any size, which the first would round, and sees a key that comes twice, of
which the first would keep the last value without a word.
"""

import json
from typing import Any

import orjson

from .row_types import MAX_LINE_BYTES, Unusable, kind

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_DEPTH = 100  # far above any real row, and below what writers of JSON can take
SHOWN_BYTES = 12


def read_object(line: bytes) -> dict[str, Any]:
    """The object that a line holds. Unusable when it is none, or would not be read as written."""
    if len(line) > MAX_LINE_BYTES:
        limit = f"longer than {MAX_LINE_BYTES // 2**20} MiB"
        raise Unusable("line_too_long", f"the line is {limit}; split the row")
    text = line.removeprefix(BYTE_ORDER_MARK)
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Unusable("invalid_json", f"not valid JSON: {_explain(text, error)}") from error
    if not isinstance(row, dict):
        raise Unusable("not_an_object", f"the row is {kind(row)}; wanted an object")
    exact: dict[str, Any] = _read_exactly(text)
    return exact


def dump(value: Any) -> bytes:
    """Any value that `read_object` gives, as JSON; equal values have equal bytes."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def read_value(text: str, where: str) -> Any:
    """The JSON value inside a string of the row. Unusable when it is none."""
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Unusable("bad_arguments", f"{where} is not valid JSON: {error}") from error
    return _read_exactly(text.encode())


def _read_exactly(text: bytes) -> Any:
    if text.count(b"{") + text.count(b"[") > MAX_DEPTH:
        _check_depth(text)
    try:
        return _EXACT.decode(text.decode())
    except ValueError as error:  # of integers beyond what Python takes
        raise Unusable("invalid_json", f"a number is too long: {error}") from error


def _check_depth(text: bytes) -> None:
    inner, depth = [orjson.loads(text)], 0
    while inner:
        depth += 1
        if depth > MAX_DEPTH:
            said = f"values lie more than {MAX_DEPTH} deep in one another; flatten the row"
            raise Unusable("too_deep", said)
        values = [item.values() if isinstance(item, dict) else item for item in inner]
        inner = [v for items in values for v in items if isinstance(v, dict | list)]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        said = f"the key {twice!r} comes twice in one object, so that a value would be lost"
        raise Unusable("duplicate_key", f"{said}; keep one")
    return made


_EXACT = json.JSONDecoder(object_pairs_hook=_object)


def _explain(text: bytes, error: orjson.JSONDecodeError) -> str:
    """What the parser says, and what its writer has probably done."""
    hint = _hint(text.strip(), error) or "wanted one object a line"
    return f"{error.msg} (column {error.colno}); {hint}"


def _hint(text: bytes, error: orjson.JSONDecodeError) -> str | None:
    here = error.doc[error.pos : error.pos + SHOWN_BYTES]
    if "surrogate" in error.msg and "UTF-8" not in error.msg:
        return "half of a pair of escapes is no character; write the text as UTF-8"
    if "UTF-8" in error.msg:
        return "is the file in another encoding? Convert it with iconv -t UTF-8"
    if b"\x00" in text:
        return "the file looks like UTF-16; convert it with iconv -t UTF-8"
    if not text.startswith((b"{", b"[", b'"')):
        begin = text[:SHOWN_BYTES].decode(errors="replace")
        return f"a row begins with {{, this line with {begin!r}: is the file CSV or plain text?"
    if text.startswith(b"{") and here.startswith("'"):
        return "JSON has double quotes; write rows with a JSON writer, not as Python prints them"
    for word, instead in (("NaN", "null"), ("Infinity", "null"), ("-Infinity", "null"),
                          ("None", "null"), ("True", "true"), ("False", "false")):  # fmt: skip
        if here.startswith(word):
            return f"{word} is no JSON; write {instead}, or a string"
    if text.endswith(b","):
        return "a line of JSON ends without a comma, unless all lines are in one array"
    if "after document" in error.msg and here.lstrip("\r").startswith("{"):
        return "wanted one object a line, each ended by a line feed"
    if "end of data" in error.msg:
        return "the object does not end on its line: a line break in it, or a file cut off"
    return None
