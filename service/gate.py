"""What every request passes: an id, a token check, a limit on the body, an answer whatever fails.

Pure ASGI, so that streams pass through untouched.
"""

import re
import secrets
import time
from collections.abc import Callable
from math import ceil
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import auth, scopes
from .attempts import FailedAttempts
from .errors import ApiError
from .logs import get_logger

MAX_BODY_BYTES = 1 << 20  # of anything that is not an upload
OPEN_PATHS = frozenset({"/livez", "/readyz", "/healthz"})
TOKEN_NAME = "headrace.token_name"  # in a request's scope, for the log
UPLOAD_PATHS = re.compile(r"/v1/files|/v1/uploads/[^/]+/parts")

log = get_logger("headrace.api")


class Gate:
    """The outermost layer of the app. Every answer carries `x-request-id`."""

    def __init__(self, app: ASGIApp, *, tokens: auth.Tokens) -> None:
        self._app = app
        self._tokens = tokens
        self._failed = FailedAttempts()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = "req_" + secrets.token_hex(12)
        started = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._pass(scope, receive, send_with_id)
        except ClientDisconnect:
            status = status or 499  # nobody is left to answer; the number is nginx's
        except Exception:
            log.exception("request failed", request_id=request_id, path=scope["path"])
            if status:
                raise  # half an answer is out: the server must cut the connection
            error = ApiError(500, "The server failed; its log has the reason.", code="internal")
            await _answer(error)(scope, receive, send_with_id)
        changes = scope["method"] not in scopes.SAFE
        say = log.info if changes or status >= 500 else log.debug
        say(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            milliseconds=round((time.monotonic() - started) * 1000, 1),
            request_id=request_id,
            token=scope.get(TOKEN_NAME),
        )

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            if scope["path"] not in OPEN_PATHS and not _may_scrape(scope):
                self._admit(scope, headers)
            if not UPLOAD_PATHS.fullmatch(scope["path"]):
                receive = _limited(receive, headers)
        except ApiError as e:
            guessed = e.code == auth.UNKNOWN_TOKEN
            wait = self._failed.count(_address(scope)) if guessed else 0
            await (_slow_down(e, wait) if wait else _answer(e))(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _admit(self, scope: Scope, headers: Headers) -> None:
        """Let a request through whose token may do what it asks, or raise ApiError."""
        entry = auth.check(self._tokens, headers)
        scopes.require(entry, scope["method"], scope["path"])
        if entry is not None:
            scope[TOKEN_NAME] = entry["name"]
            self._tokens.note_use(entry)


def _limited(receive: Receive, headers: Headers) -> Receive:
    """A `receive` that ends with 413 when the body is longer than it may be."""
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise ApiError(413, _TOO_LONG, code="body_too_large")
    num_bytes = 0

    async def receive_limited() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_BODY_BYTES:
            raise HTTPException(413, _TOO_LONG)
        return message

    return receive_limited


def _may_scrape(scope: Scope) -> bool:
    """Whether this is a scrape of the metrics from this machine."""
    return scope["path"] == "/metrics" and auth.is_loopback(_address(scope))


def _address(scope: Scope) -> str:
    """Where a request comes from; nothing when the server cannot tell."""
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else ""


def _answer(error: ApiError, headers: dict[str, str] | None = None) -> Callable[..., Any]:
    return JSONResponse(error.envelope(), error.status, headers)


def _slow_down(refused: ApiError, wait: float) -> Callable[..., Any]:
    """The 429 for one failed attempt too many. Clients are told not to repeat it by themselves."""
    message = f"{refused.message} There were too many such attempts from this address."
    error = ApiError(429, message, code="too_many_failed_attempts", hint="Check the token.")
    return _answer(error, {"retry-after": str(ceil(wait)), "x-should-retry": "false"})


_TOO_LONG = f"The body is longer than {MAX_BODY_BYTES} bytes; send large data as a file."
