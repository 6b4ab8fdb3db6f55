"""What handlers share: the daemon, page limits, ETags."""

import hashlib
from typing import Annotated, Any

import orjson
from fastapi import Depends, Header, Path, Query, Request
from fastapi.responses import Response

from ..contract import Daemon
from ..errors import ApiError, not_found
from ..jobs import JobRecord
from ..strict import Whole


def get_daemon(request: Request) -> Daemon:
    """The daemon that the app was made around."""
    daemon: Daemon = request.app.state.daemon
    return daemon


TheDaemon = Annotated[Daemon, Depends(get_daemon)]
JobId = Annotated[str, Path(description="The id of a job.")]
Limit = Annotated[int, Whole(1, 1000), Query(description="At most so many on the page.")]
After = Annotated[
    str | None,
    Query(description="The page begins behind the one of this id: the last of the page before."),
]
Unchanged = Annotated[
    str | None,
    Header(
        alias="if-none-match", description="The ETag of what is known; 304 when it is so still."
    ),
]

Contains = Annotated[
    str | None,
    Query(max_length=200, description="Those whose name contains this; A and a are the same."),
]


def require_job(daemon: Daemon, job_id: str) -> JobRecord:
    """The job of that id, or a 404."""
    job = daemon.journal.job(job_id)
    if job is None:
        raise not_found("job", job_id, param="fine_tuning_job_id")
    return job


def content_length(request: Request) -> int | None:
    """How long the body says that it is, in bytes."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isdecimal() else None


def unknown_after(after: str | None) -> ApiError:
    """The 400 for an `after` that is not on the list: page one in its place would loop."""
    message = f"after is {after!r}, which is not on this list."
    return ApiError(400, message, param="after", code="invalid_value")


def told(content: dict[str, Any]) -> Response:
    """The content as JSON, written where it was made: on the thread of the handler.

    What a handler returns as it is, the framework walks value by value on the event loop, which
    takes a hundred times as long as writing it and holds up everyone meanwhile. So long answers
    are returned by this.
    """
    return Response(orjson.dumps(content), media_type="application/json")


def with_etag(known: str | None, content: dict[str, Any]) -> Response:
    """The content with an ETag, or 304 when the client has it already."""
    body = orjson.dumps(content)
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"etag": etag, "cache-control": "no-cache"}
    if known == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)
