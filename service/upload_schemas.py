"""What requests for files may say."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from .strict import Name, Strict

MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3600, 2_592_000  # the range of the OpenAI API


class ExpiresAfter(Strict):
    """When a file goes by itself, in seconds after it came."""

    path = "expires_after"

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=MIN_EXPIRY_SECONDS, le=MAX_EXPIRY_SECONDS)]


class CreateUpload(Strict):
    """The body of POST /v1/uploads. `mime_type` is for clients; what counts is the content."""

    bytes: Annotated[int, Field(ge=1, lt=1 << 63)]
    filename: Annotated[Name, StringConstraints(max_length=255)]
    mime_type: Name
    purpose: Literal["fine-tune"]
    expires_after: ExpiresAfter | None = None


class CompleteUpload(Strict):
    """The body of POST /v1/uploads/{id}/complete: the parts in the order of the file."""

    part_ids: Annotated[list[Name], Field(min_length=1)]
    md5: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{32}$")] | None = None
