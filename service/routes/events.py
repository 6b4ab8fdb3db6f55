"""/v1/fine_tuning/jobs/{id}/events: the pages of the past, and the live streams of job and box."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ..answers import EventPage
from ..contract import Daemon
from ..errors import ApiError
from ..events import follow
from ..jobs import UnknownId
from ..logs import get_logger
from ..shapes import event_object, job_object, page
from ..status_feed import StatusFeed
from ..story import Encoder, Thinner, encode
from ..strict import Number, Whole
from .common import After, JobId, Limit, TheDaemon, require_job, told, unknown_after
from .description import BAD, MISSING, answers, stream_of

router = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}/events", tags=["events"])
box_router = APIRouter(tags=["status"])

LastEventId = Annotated[
    str | None,
    Header(description="The id of the last event that was seen: the stream goes on there."),
]
AfterSeq = Annotated[
    int | None,
    Whole(0, (1 << 63) - 1),
    Query(alias="last_event_id", description="The same, for clients without the header; 0: all."),
]
Rate = Annotated[
    float | None,
    Number(above=0, most=1000),
    Query(description="Step reports a second at most; the newest always comes."),
]
SEEN_ALL = {"description": "The job is over and the client has seen it all: come no more."}
PING_SECONDS = 10
MAX_DIGITS = 25  # of an event's number; no journal counts so far
SEND_TIMEOUT_SECONDS = 30  # a viewer that takes nothing for so long is dropped

log = get_logger("headrace.api")


class Stream(EventSourceResponse):
    """A stream that lets go of a viewer that does not take what it is sent."""

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the events end, the viewer goes away, or it stops reading."""
        try:
            await super().__call__(scope, receive, send)
        except* SendTimeoutError:
            log.info("dropped a viewer that does not read", path=scope["path"])
        except* ClientDisconnect:
            log.info("dropped a viewer whose token was revoked", path=scope["path"])


@router.get("", **answers(EventPage, BAD, MISSING))
def list_events(
    job_id: JobId, daemon: TheDaemon, after: After = None, limit: Limit = 20
) -> Response:
    """A job's events, newest first, so that `after` walks into the past."""
    require_job(daemon, job_id)
    try:
        events = daemon.journal.events(job_id, after_id=after, limit=limit + 1)
    except UnknownId:
        raise unknown_after(after) from None
    return told(page([event_object(event) for event in events], limit))


@router.get(
    "/stream",
    response_class=Stream,
    responses={**stream_of("Events until the job ends."), 204: SEEN_ALL, **BAD, **MISSING},
)
async def stream(
    job_id: JobId,
    request: Request,
    daemon: TheDaemon,
    last_event_id: LastEventId = None,
    after_seq: AfterSeq = None,
    metrics_per_second: Rate = None,
) -> Response:
    """Live events as server-sent events: a snapshot, what was missed, then what happens.

    Resumes after the header `Last-Event-ID`, or the query's `last_event_id` (0: from the start).
    204 when the job is over and the client has seen it all. With `metrics_per_second`, step reports
    that come faster are left out; the newest always comes. Who watches alone is told at once. Many
    together are told in turn, each of all that has come meanwhile: two hundred of them every half a
    second, less often where the box is busy, and of a change of the job's status without delay.
    """
    seen = _read_seq(last_event_id) if last_event_id else after_seq
    if await daemon.hub.reader.ask(_has_seen_all, daemon, job_id, seen):
        return Response(status_code=204)
    story = _tell(daemon, job_id, seen, _encoder(request), Thinner(metrics_per_second))
    return Stream(story, ping=PING_SECONDS, send_timeout=SEND_TIMEOUT_SECONDS)


@box_router.get(
    "/status/stream", response_class=Stream, responses=stream_of("The status, without end.")
)
async def stream_status(request: Request) -> Response:
    """The status as server-sent events: a `snapshot`, then `status` when it is another one.

    At most one a second; each says all, so that there is nothing to resume.
    """
    feed: StatusFeed = request.app.state.status_feed
    return Stream(_tell_status(feed), ping=PING_SECONDS, send_timeout=SEND_TIMEOUT_SECONDS)


async def _tell(
    daemon: Daemon, job_id: str, seen: int | None, encoder: Encoder, thinner: Thinner
) -> AsyncIterator[bytes]:
    ask = daemon.hub.reader.ask
    with daemon.hub.view(job_id) as viewer:
        start = await ask(_start, daemon, job_id, seen)
        if start.is_reset:
            yield encode("reset", start.job, start.seq)
        yield encode("snapshot", start.job, start.seq)
        if not start.is_end:
            rest = follow(daemon.journal, viewer, start.seq, last_seq=start.last_seq)
            async for items in rest:
                told = b"".join(encoder(one) for item in items for one in thinner.take(item))
                if told:
                    yield told
        yield encode("done", await ask(_job_object, daemon, job_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Where a stream begins: the job, the number of the event after which it goes on.

    `last_seq` is that of the last event of a job that is over, else None.
    """

    job: dict[str, Any]
    seq: int
    is_reset: bool
    last_seq: int | None

    @property
    def is_end(self) -> bool:
        """Whether there is nothing left to tell."""
        return self.seq == self.last_seq


def _start(daemon: Daemon, job_id: str, seen: int | None) -> _Start:
    """Blocks. Events that come while it looks are above `seq`, whatever the job shows by then."""
    journal = daemon.journal
    newest, shortened = journal.last_event_seq(job_id), journal.shortened_seq(job_id)
    is_reset = seen is not None and (seen > newest or 0 < seen < shortened)
    seq = newest if seen is None or is_reset else seen
    job = require_job(daemon, job_id)
    last_seq = journal.last_event_seq(job_id) if job.is_terminal else None
    return _Start(job=job_object(job), seq=seq, is_reset=is_reset, last_seq=last_seq)


def _has_seen_all(daemon: Daemon, job_id: str, seen: int | None) -> bool:
    """Blocks. Whether there is nothing left to tell of the job; ApiError where there is none."""
    job = require_job(daemon, job_id)
    return job.is_terminal and seen == daemon.journal.last_event_seq(job_id)


async def _tell_status(feed: StatusFeed) -> AsyncIterator[bytes]:
    name = "snapshot"
    async for status in feed.follow():
        yield encode(name, status)
        name = "status"


def _job_object(daemon: Daemon, job_id: str) -> dict[str, Any]:
    return job_object(require_job(daemon, job_id))


def _encoder(request: Request) -> Encoder:
    encoder: Encoder = request.app.state.encoder
    return encoder


def _read_seq(text: str) -> int:
    if text.isascii() and text.isdecimal():
        return int(text[:MAX_DIGITS])  # a longer one is beyond all events too
    message = f"Last-Event-ID is {text!r:.80}; wanted the id of an event of this stream, a number."
    raise ApiError(400, message, param="Last-Event-ID", code="invalid_value")
