"""A file as an answer, whole or the parts of it that the Range header asks for (RFC 9110, 14)."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse

from .errors import ApiError

_SPEC = re.compile(r"([0-9]+)-([0-9]*)|-([0-9]+)")
_MAX_DIGITS = 20  # of a position; no file is so large


def download(
    request: Request, path: Path, *, media_type: str, headers: Mapping[str, str]
) -> FileResponse:
    """The answer with the file at `path`, for this request. Call in a thread.

    A Range of another unit than bytes, or of another version (If-Range), counts for nothing, so
    that the whole file comes. ApiError: 400 for one that is malformed, 416 for one that the file
    has nothing of. FileNotFoundError.
    """
    found = os.stat(path)
    answer = FileResponse(path, media_type=media_type, headers=headers, stat_result=found)
    known = (None, answer.headers["etag"], answer.headers["last-modified"])
    asked = request.headers.get("range", "")
    if request.headers.get("if-range") in known:
        asked = satisfiable(asked, found.st_size)
    others = [(name, value) for name, value in request.scope["headers"] if name != b"range"]
    request.scope["headers"] = [*others, (b"range", asked.encode())] if asked else others
    return answer


def satisfiable(header: str, size: int) -> str:
    """The Range header with only those ranges that a file of `size` bytes has something of.

    Their numbers are no longer than the file's, since Python reads none of some thousands of
    digits. Nothing for another unit, which is to be ignored. ApiError: 400, 416.
    """
    unit, equals, specs = header.partition("=")
    if equals and unit.strip().lower() != "bytes" or not header:
        return ""
    kept, has_any = [], False
    for spec in filter(None, (spec.strip() for spec in specs.split(","))):
        match = _SPEC.fullmatch(spec)
        first, last, suffix = (_position(text) for text in match.groups()) if match else (None,) * 3
        if match is None or (first is not None and last is not None and last < first):
            raise _malformed(header)
        has_any = True
        if first is None and suffix and size:
            kept.append(f"-{min(suffix, size)}")
        elif first is not None and first < size:
            kept.append(f"{first}-{'' if last is None else min(last, size - 1)}")
    if not has_any:
        raise _malformed(header)
    if not kept:
        message = f"The file has {size} bytes and nothing of the range {header!r:.80}."
        told = {"content-range": f"bytes */{size}"}
        raise ApiError(416, message, param="Range", code="range_not_satisfiable", headers=told)
    return f"bytes={','.join(kept)}"


def _position(digits: str | None) -> int | None:
    return int(digits.lstrip("0")[:_MAX_DIGITS] or "0") if digits else None


def _malformed(header: str) -> ApiError:
    message = f"Range is {header!r:.80}; wanted bytes=FIRST-LAST, bytes=FIRST- or bytes=-LENGTH."
    return ApiError(400, message, param="Range", code="invalid_value")
