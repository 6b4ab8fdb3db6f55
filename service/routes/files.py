"""/v1/files: training files in, result files out."""

import asyncio
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import FileResponse, Response

from ..answers import Deleted, File, FilePage
from ..contract import Daemon
from ..downloads import download
from ..errors import ApiError, not_found
from ..filenames import attachment
from ..files import Incoming, remove_file
from ..jobs import FileRecord, UnknownId
from ..shapes import file_object, page
from ..strict import Whole
from ..upload_schemas import MAX_EXPIRY_SECONDS, MIN_EXPIRY_SECONDS
from .common import After, Contains, TheDaemon, content_length, told, unknown_after
from .description import BAD, MISSING, TOO_LARGE, Responses, answers, refusal

router = APIRouter(prefix="/v1/files", tags=["files"])

UPLOAD_PURPOSES = ("fine-tune",)
OCTETS = "application/octet-stream"
CONTENT = {OCTETS: {"schema": {"type": "string", "format": "binary"}}}
BYTES: Responses = {
    200: {"description": "The file.", "content": CONTENT},
    206: {"description": "The range that was asked for.", "content": CONTENT},
    416: refusal("A range that the file has nothing of; `content-range` says how long it is."),
}


FileId = Annotated[str, Path(description="The id of a file.")]
FileLimit = Annotated[int, Whole(1, 10_000), Query(description="At most so many on the page.")]
Order = Annotated[
    Literal["asc", "desc"], Query(description="desc: newest first; asc: oldest first.")
]
Purpose = Annotated[
    str | None, Query(description="Those of that purpose: fine-tune, or fine-tune-results.")
]

UPLOAD_FORM = {
    "type": "object",
    "required": ["purpose", "file"],
    "properties": {
        "purpose": {
            "type": "string",
            "enum": list(UPLOAD_PURPOSES),
            "description": "What the file is for: rows to train or evaluate on.",
        },
        "file": {
            "type": "string",
            "format": "binary",
            "description": "The file with its name. JSON lines or one JSON array, plain, gzip or "
            "zstd, or Parquet; its content is looked at when a job names it.",
        },
        "expires_after[anchor]": {
            "type": "string",
            "enum": ["created_at"],
            "description": "Where the seconds begin: at the file's creation.",
        },
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": MIN_EXPIRY_SECONDS,
            "maximum": MAX_EXPIRY_SECONDS,
            "description": "How long the file stays. Left out: until it is deleted.",
        },
    },
}
UPLOAD_BODY = {"required": True, "content": {"multipart/form-data": {"schema": UPLOAD_FORM}}}


# the form is read as it comes, so it is told by hand
@router.post("", openapi_extra={"requestBody": UPLOAD_BODY}, **answers(File, BAD, TOO_LARGE))
async def upload(request: Request, daemon: TheDaemon) -> dict[str, Any]:
    """Take a file in: multipart parts `purpose`, `file`, `expires_after[…]`."""
    settings = daemon.settings
    with Incoming(settings.files_dir, max_file_bytes=settings.max_file_bytes) as incoming:
        received = await incoming.receive(
            request.stream(),
            content_type=request.headers.get("content-type", ""),
            content_length=content_length(request),
        )
        purpose, expires_after = _read_fields(received.fields)
        file = await asyncio.to_thread(
            incoming.keep,
            received,
            purpose=purpose,
            expires_after=expires_after,
            record=daemon.journal.add_file,
        )
    return file_object(file)


@router.get("", **answers(FilePage, BAD))
def list_files(
    daemon: TheDaemon,
    after: After = None,
    limit: FileLimit = 10_000,
    order: Order = "desc",
    purpose: Purpose = None,
    contains: Contains = None,
) -> Response:
    """Files, newest first unless told otherwise."""
    try:
        files = daemon.journal.files(
            after=after,
            limit=limit + 1,
            purpose=purpose,
            contains=contains,
            newest_first=order == "desc",
        )
    except UnknownId:
        raise unknown_after(after) from None
    return told(page([file_object(file) for file in files], limit))


@router.get("/{file_id}", **answers(File, MISSING))
def retrieve(file_id: FileId, daemon: TheDaemon) -> dict[str, Any]:
    """One file's record."""
    return file_object(_require(daemon, file_id))


@router.get("/{file_id}/content", response_class=FileResponse, responses={**BYTES, **MISSING})
def content(file_id: FileId, request: Request, daemon: TheDaemon) -> FileResponse:
    """A file's bytes; ranges are served."""
    file = _require(daemon, file_id)
    headers = {"content-disposition": attachment(file.filename)}
    try:
        return download(request, FilePath(file.path), media_type=OCTETS, headers=headers)
    except FileNotFoundError:
        raise _missing(file_id) from None


@router.delete("/{file_id}", **answers(Deleted, BAD, MISSING))
def delete(file_id: FileId, daemon: TheDaemon) -> dict[str, Any]:
    """Remove a file that no unfinished job reads."""
    remove_file(daemon.journal, _require(daemon, file_id))
    return {"id": file_id, "object": "file", "deleted": True}


def _require(daemon: Daemon, file_id: str) -> FileRecord:
    file = daemon.journal.file(file_id)
    if file is None or not FilePath(file.path).is_file():
        raise _missing(file_id)
    return file


def _missing(file_id: str) -> ApiError:
    return not_found("file", file_id, param="file_id")


def _read_fields(fields: dict[str, str]) -> tuple[str, int | None]:
    """The purpose, and seconds until the file expires."""
    purpose = fields.pop("purpose", None)
    anchor = fields.pop("expires_after[anchor]", None)
    seconds = fields.pop("expires_after[seconds]", None)
    if purpose is None:
        message = f"Missing field 'purpose'; wanted {' or '.join(UPLOAD_PURPOSES)}."
        raise ApiError(400, message, param="purpose", code="missing_field")
    if purpose not in UPLOAD_PURPOSES:
        message = f"purpose is {purpose!r}; wanted {' or '.join(UPLOAD_PURPOSES)}."
        raise ApiError(400, message, param="purpose", code="invalid_value")
    if fields:
        name = min(fields)
        raise ApiError(400, f"Unknown field {name!r}.", param=name, code="unknown_field")
    if anchor is None and seconds is None:
        return purpose, None
    if anchor != "created_at":
        message = f"expires_after[anchor] is {anchor!r}; wanted created_at."
        raise ApiError(400, message, param="expires_after[anchor]", code="invalid_value")
    return purpose, _read_seconds(seconds or "")


def _read_seconds(text: str) -> int:
    if text.isdecimal() and MIN_EXPIRY_SECONDS <= int(text) <= MAX_EXPIRY_SECONDS:
        return int(text)
    message = (
        f"expires_after[seconds] is {text!r}; wanted {MIN_EXPIRY_SECONDS} to {MAX_EXPIRY_SECONDS}."
    )
    raise ApiError(400, message, param="expires_after[seconds]", code="invalid_value")
