"""What requests for files may say."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from .filenames import MAX_CHARACTERS
from .strict import Name, Strict, Whole, says

MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3600, 2_592_000  # the range of the OpenAI API


class ExpiresAfter(Strict):
    """When a file goes by itself."""

    anchor: Literal["created_at"] = Field(
        title="Anchor", description="Where the seconds begin: at the file's creation."
    )
    seconds: Annotated[int, Whole(MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS)] = Field(
        title="Seconds", description="How long the file stays."
    )


class CreateUpload(Strict):
    """The body of POST /v1/uploads."""

    bytes: Annotated[int, Whole(1, (1 << 63) - 1)] = Field(
        title="Bytes", description="Of the whole file. Its parts must add up to them."
    )
    filename: Annotated[Name, StringConstraints(max_length=MAX_CHARACTERS)] = Field(
        title="Filename", description="The file's name; folders before it are left out."
    )
    mime_type: Name = Field(
        title="MIME type", description="For clients of the OpenAI API; what counts is the content."
    )
    purpose: Literal["fine-tune"] = Field(
        title="Purpose", description="What the file is for: rows to train or evaluate on."
    )
    expires_after: ExpiresAfter | None = says(
        "Expiry", "When the file goes by itself. auto: it stays until it is deleted."
    )


class CompleteUpload(Strict):
    """The body of POST /v1/uploads/{id}/complete."""

    part_ids: Annotated[list[Name], Field(min_length=1)] = Field(
        title="Parts", description="The ids of the parts, in the order of the file."
    )
    md5: Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{32}$")] | None = says(
        "MD5", "Of the whole file, in hexadecimal; another one is refused. auto: not compared."
    )
