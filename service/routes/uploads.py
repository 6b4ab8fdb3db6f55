"""/v1/uploads: a large file in parts, each of which can be sent again by itself."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request

from ..answers import Part, Upload
from ..shapes import part_object, upload_object
from ..upload_schemas import CompleteUpload, CreateUpload
from ..uploads import Uploads
from .common import content_length
from .description import BAD, MISSING, TOO_LARGE, answers

router = APIRouter(prefix="/v1/uploads", tags=["uploads"])

UploadId = Annotated[str, Path(description="The id of an upload.")]

PART_FORM = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "data": {
            "type": "string",
            "format": "binary",
            "description": "The bytes of the part, 1 to 64 MiB of them.",
        }
    },
}
PART_BODY = {"required": True, "content": {"multipart/form-data": {"schema": PART_FORM}}}


@router.post("", **answers(Upload, BAD))
async def create(body: CreateUpload, request: Request) -> dict[str, Any]:
    """Begin an upload of so many bytes; it lives for an hour."""
    return upload_object(await _uploads(request).create(body), None)


@router.post(
    "/{upload_id}/parts",
    openapi_extra={"requestBody": PART_BODY},
    **answers(Part, BAD, MISSING, TOO_LARGE),
)
async def add_part(upload_id: UploadId, request: Request) -> dict[str, Any]:
    """Take one part in: the multipart part `data`, 64 MiB at most."""
    part = await _uploads(request).add_part(
        upload_id,
        request.stream(),
        content_type=request.headers.get("content-type", ""),
        content_length=content_length(request),
    )
    return part_object(part)


@router.post("/{upload_id}/complete", **answers(Upload, BAD, MISSING, TOO_LARGE))
async def complete(upload_id: UploadId, body: CompleteUpload, request: Request) -> dict[str, Any]:
    """Make the file of these parts, in this order; their bytes must be those told at first."""
    return upload_object(*await _uploads(request).complete(upload_id, body))


@router.post("/{upload_id}/cancel", **answers(Upload, BAD, MISSING))
async def cancel(upload_id: UploadId, request: Request) -> dict[str, Any]:
    """End the upload and remove its parts."""
    return upload_object(await _uploads(request).cancel(upload_id), None)


def _uploads(request: Request) -> Uploads:
    uploads: Uploads = request.app.state.uploads
    return uploads
