"""The ASGI app: routes around a daemon, errors in one envelope, start and stop."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from . import auth, files, logs
from .attempts import FailedAttempts
from .contract import Daemon
from .creation import Creation
from .errors import ApiError
from .full_disk import is_full
from .gate import Gate
from .jobs import EventRecord, IllegalMove
from .logs import get_logger
from .metrics import Metrics
from .page_view import make_ready
from .refusals import refusal
from .removal import finish_removals
from .routes import bundles, events, exports, jobs, models, page, probes, rows, samples, series
from .routes import files as file_routes
from .routes import uploads as upload_routes
from .routes.description import EVERYWHERE, TAGS, describe, operation_id
from .schemas import what_was_meant
from .sessions import Sessions
from .settings import Settings
from .status import product_version
from .status_feed import StatusFeed
from .story import Encoder
from .tokens_file import TokensDamaged
from .uploads import Uploads

EXPIRY_SECONDS = 60
SECONDS_PER_DAY = 86_400
UNPARSED = "There was an error parsing the body"  # FastAPI's words for JSON that Python gives up on


log = get_logger("headrace.api")


def create_app(daemon: Daemon) -> FastAPI:
    """The API around `daemon`, which is started and stopped with the app."""
    app = FastAPI(
        title="Headrace",
        version=product_version(),
        summary="Fine-tuning of models larger than memory, in the shapes of the OpenAI API.",
        lifespan=_lifespan,
        responses=EVERYWHERE,
        openapi_tags=TAGS,
        generate_unique_id_function=operation_id,
        redirect_slashes=False,
        docs_url=None,  # those pages load scripts from elsewhere
        redoc_url=None,
    )
    describe(app)
    app.state.daemon = daemon
    app.state.tokens = auth.Tokens(daemon.settings.tokens_path)
    sessions_path = daemon.settings.data_dir / "sessions.json"
    app.state.sessions = Sessions(sessions_path, app.state.tokens)
    app.state.failed_attempts = FailedAttempts()
    app.state.metrics = Metrics(daemon)
    app.state.creation = Creation(daemon)
    app.state.uploads = Uploads(daemon)
    app.state.status_feed = StatusFeed(daemon)
    app.state.encoder = Encoder()
    of_jobs = (jobs, events, series, samples, rows, exports, bundles)
    for routes in (file_routes, upload_routes, *of_jobs, models, probes, page):
        app.include_router(routes.router)
    app.include_router(events.box_router)
    app.add_middleware(
        Gate,
        tokens=app.state.tokens,
        sessions=app.state.sessions,
        failed=app.state.failed_attempts,
    )
    app.add_exception_handler(ApiError, _refuse)
    app.add_exception_handler(IllegalMove, _refuse_move)
    app.add_exception_handler(RequestValidationError, _refuse_invalid)
    app.add_exception_handler(HTTPException, _refuse_http)
    for error in (OperationalError, OSError):
        app.add_exception_handler(error, _refuse_full)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    daemon: Daemon = app.state.daemon
    settings = daemon.settings
    logs.configure(settings.log_level)
    daemon.hub.add_listener(_log_event)
    # Beside the daemon's start, which waits for drives. By the threads that handlers run in.
    ready = asyncio.create_task(run_in_threadpool(_make_ready, app))
    await daemon.start()  # before all else: it makes sure that the data directory is ours
    try:
        files.settle_incoming(settings.files_dir, daemon.journal)
        finish_removals(settings.jobs_dir)
        app.state.uploads.reclaim()
        _look_at_tokens(app.state.tokens, settings)
        daemon.hub.add_listener(app.state.metrics.observe)
        house = _keep_house(daemon, app.state.uploads, app.state.tokens)
        await ready
        async with _beside(house):
            yield
    finally:
        await daemon.stop()


def _make_ready(app: FastAPI) -> None:
    """Do what is done once, so that the first request is answered as fast as the next.

    FastAPI builds what its routes need when a path is first looked for, on the event loop and for
    a fifth of a second: here that is a path which there is not.
    """
    nowhere = {"type": "http", "method": "GET", "path": "//", "root_path": "", "headers": []}
    for route in app.routes:
        route.matches(nowhere)
    make_ready()


def _look_at_tokens(tokens: auth.Tokens, settings: Settings) -> None:
    """Make the first token where one is wanted; say it when nobody can be let in."""
    token_path = settings.data_dir / "token"
    try:
        tokens.entries()
        if auth.first_token(tokens, settings.host, token_path):
            log.warning("made the first access token; read it from the file", path=str(token_path))
    except TokensDamaged as e:
        log.error(e.message, hint=e.hint)


def _log_event(event: EventRecord) -> None:
    """How jobs move, and what they warn of, in the daemon's log; their steps are not for it."""
    if event.type == "status" or event.level != "info":
        say = {"warn": log.warning, "error": log.error}.get(event.level, log.info)
        say(event.message, job_id=event.job_id)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let `work` run until the block ends."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _keep_house(daemon: Daemon, uploads: Uploads, tokens: auth.Tokens) -> None:
    """What is to be done now and then: files expire, the use of tokens is written down."""
    while True:
        try:
            await daemon.journal.call(files.remove_expired, daemon.journal)
            await uploads.expire()
            await asyncio.to_thread(tokens.keep_uses)
            await daemon.journal.call(daemon.journal.keep_reserve)
            oldest = time.time() - SECONDS_PER_DAY * daemon.settings.keep_events_days
            await daemon.journal.call(daemon.journal.shorten_stories, ended_before=oldest)
        except (OSError, SQLAlchemyError) as e:
            log.warning("cannot keep house", reason=str(e))
        await asyncio.sleep(EXPIRY_SECONDS)


async def _refuse(_request: Request, error: Any) -> JSONResponse:
    return JSONResponse(error.envelope(), error.status, error.headers)


async def _refuse_move(request: Request, error: Any) -> JSONResponse:
    """400, not 409: clients of the OpenAI API send a request again when they see a 409."""
    asked = "resumed" if error.after == "queued" else error.after
    message = f"Job {error.job_id} is {error.before} and cannot be {asked}."
    hint = None
    if (error.before, error.after) == ("running", "queued"):
        hint = "A pause takes effect at the next step boundary; resume the job once it is paused."
    return await _refuse(request, ApiError(400, message, code="invalid_job_status", hint=hint))


async def _refuse_full(request: Request, error: Exception) -> JSONResponse:
    """507 when journal or drive have no room for what was asked; nothing of it was done."""
    if not is_full(error):
        raise error
    message = "The data directory is full, so this cannot be recorded."
    hint = "Delete files or models, or make room on the drive."
    return await _refuse(request, ApiError(507, message, code="no_space", hint=hint))


async def _refuse_invalid(request: Request, error: Any) -> JSONResponse:
    """What a body or a query may not say; of create bodies, also what was meant."""
    refused = refusal(error.errors())
    creates = request.url.path in ("/v1/fine_tuning/jobs", "/v1/fine_tuning/plans")
    return await _refuse(request, what_was_meant(refused) if creates else refused)


async def _refuse_http(request: Request, error: Any) -> JSONResponse:
    """What the framework refuses: unknown paths, wrong methods, bodies that are too long."""
    message = str(error.detail)
    code = None
    if error.status_code == 404:
        message, code = f"There is nothing at {request.method} {request.url.path}.", "not_found"
    elif error.status_code == 400 and message == UNPARSED:
        message = (
            "The body cannot be read as JSON: it is nested too deeply, not in UTF-8, or holds a "
            "number of too many digits."
        )
        code = "invalid_json"
    elif error.status_code == 405:
        message = f"{request.method} is not for {request.url.path}."
        code = "method_not_allowed"
    response = await _refuse(request, ApiError(error.status_code, message, code=code))
    response.headers.update(error.headers or {})
    return response
