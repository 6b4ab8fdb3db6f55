"""Names of files as requests carry them, made safe to keep, to show and to send. Pure.

A name is data of whoever sends it: it may hold a path, quotes, line ends or no character at all.
What is kept is its last part without control characters.
"""

import re
import unicodedata
from urllib.parse import quote, unquote_to_bytes

NO_NAME = "file"
MAX_CHARACTERS = 255
# Each character within quotes can be taken in one way alone: else many backslashes take for ever.
_QUOTED = rb'"(?:[^"\\]|\\["\\]|\\(?!["\\]))*+"'
_PARAMETER = re.compile(rb';\s*+([^\s=;"]++)\s*+=\s*+(' + _QUOTED + rb"|[^;]*)")
_FORM_ESCAPES = re.compile("%22|%0d|%0a", re.IGNORECASE)  # how browsers write these in a form
_PLAIN = re.compile(r"[\w .,()+=@#$&!~^{}\[\]-]+", re.ASCII)


def parameters(header: bytes) -> dict[str, str]:
    r"""The parameters of a Content-Disposition header by their names in lower case.

    In quotes `\"` and `\\` stand for one character, another backslash for itself: old browsers
    send whole paths so. `name*` (RFC 8187) counts before `name`, where it can be read.
    """
    plain: dict[str, str] = {}
    extended: dict[str, str] = {}
    for name, value in _PARAMETER.findall(header):
        key = _decode(name).lower()
        if key.endswith("*"):
            text = _extended(value.strip())
            if text is not None:
                extended.setdefault(key[:-1], text)
        elif value.startswith(b'"'):
            plain.setdefault(key, _decode(re.sub(rb'\\(["\\])', rb"\1", value[1:-1])))
        else:
            plain.setdefault(key, _decode(value.strip()))
    return plain | extended


def _extended(value: bytes) -> str | None:
    """The text of `charset'language'percent-encoded`; None for what is not that."""
    charset, mark, rest = value.partition(b"'")
    _, again, text = rest.partition(b"'")
    if not (mark and again) or charset.lower() not in (b"utf-8", b"iso-8859-1"):
        return None
    try:
        return unquote_to_bytes(text).decode(charset.decode().lower())
    except UnicodeDecodeError:
        return None


def _decode(data: bytes) -> str:
    """UTF-8, as clients send it today; else Latin-1, which any bytes are."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def safe_name(name: str) -> str:
    """The name of a file without folders and control characters; `file` when nothing is left."""
    name = _FORM_ESCAPES.sub(lambda match: unquote_to_bytes(match[0]).decode(), name)
    name = re.split(r"[/\\]", name)[-1]
    kept = "".join(one for one in name if unicodedata.category(one) not in ("Cc", "Cs", "Zl", "Zp"))
    kept = kept.strip()
    return NO_NAME if kept in ("", ".", "..") else kept


def attachment(name: str) -> str:
    """A Content-Disposition header (RFC 6266) for a download of that name.

    Clients that do not know `filename*` get the name with `_` for what a plain one cannot hold.
    """
    name = safe_name(name)
    if _PLAIN.fullmatch(name):
        return f'attachment; filename="{name}"'
    plain = "".join(one if _PLAIN.fullmatch(one) else "_" for one in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
