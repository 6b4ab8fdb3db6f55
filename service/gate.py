"""What every request passes: an id, a token check, a limit on the body, an answer whatever fails.

Pure ASGI, so that streams pass through untouched.
"""

import re
import time
from collections.abc import Mapping
from math import ceil
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from . import auth, scopes
from .attempts import FailedAttempts
from .errors import ApiError
from .front import OPEN_PATHS, new_request_id
from .logs import get_logger
from .sessions import Sessions, let_in

LOOK_SECONDS = 5  # how often an answer that lasts looks whether its token is still good
MAX_BODY_BYTES = 1 << 20  # of anything that is not an upload
TOKEN_NAME = "headrace.token_name"  # in a request's scope, for the log
UPLOAD_PATHS = re.compile(r"/v1/files|/v1/uploads/[^/]+/parts")
LOGIN_PATHS = re.compile(r"/login|/static/.*|/favicon\.ico")  # wanted before a token is shown
PAGES = re.compile(r"/|/new|/jobs/[A-Za-z0-9-]+")

log = get_logger("headrace.api")


class Gate:
    """The outermost layer of the app. Every answer carries `x-request-id`."""

    def __init__(
        self, app: ASGIApp, *, tokens: auth.Tokens, sessions: Sessions, failed: FailedAttempts
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._sessions = sessions
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_request_id()
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
            message = f"The server failed at request {request_id}; its log has the reason."
            error = ApiError(500, message, code="internal")
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
            if scope["path"] not in OPEN_PATHS and not _may_scrape(scope, headers):
                entry = self._admit(scope, headers)
                send = send if entry is None else self._while_known(entry, send)
            if not UPLOAD_PATHS.fullmatch(scope["path"]):
                receive = _limited(receive, headers)
        except ApiError as e:
            if e.code == auth.MISSING_TOKEN and _wants_page(scope, headers):
                await RedirectResponse(login_url(scope["path"]), 303)(scope, receive, send)
                return
            guessed = e.code == auth.UNKNOWN_TOKEN
            wait = self._failed.count(address_of(scope)) if guessed else 0
            await (slow_down(e, wait) if wait else _answer(e))(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _admit(self, scope: Scope, headers: Headers) -> dict[str, Any] | None:
        """Let a request through whose token or session may do what it asks, or raise ApiError.

        The token's entry; None where none is wanted.
        """
        method, path = scope["method"], scope["path"]
        entry = None
        if self._tokens.entries():
            if LOGIN_PATHS.fullmatch(path):
                return None
            shows_token = "authorization" in headers or "api-key" in headers
            entry = None if shows_token else let_in(self._sessions, method, headers)
        entry = entry or auth.check(self._tokens, headers, address_of(scope))
        scopes.require(entry, method, path)
        if entry is not None:
            scope[TOKEN_NAME] = entry["name"]
            self._tokens.note_use(entry)
        return entry

    def _while_known(self, entry: Mapping[str, Any], send: Send) -> Send:
        """A `send` for as long as the token is not revoked: streams and downloads may last."""
        looked_at = time.monotonic()

        async def send_while_known(message: Message) -> None:
            nonlocal looked_at
            if time.monotonic() - looked_at > LOOK_SECONDS:
                if not self._tokens.knows(entry):
                    raise ClientDisconnect  # the connection is cut, as if by the other end
                looked_at = time.monotonic()
            await send(message)

        return send_while_known


def login_url(path: str) -> str:
    """Where a browser shows its token, to come back to that page."""
    return f"/login?next={quote(path)}" if PAGES.fullmatch(path) and path != "/" else "/login"


def _wants_page(scope: Scope, headers: Headers) -> bool:
    """Whether a person's browser asks for a page."""
    is_page = scope["method"] == "GET" and PAGES.fullmatch(scope["path"])
    return bool(is_page) and "text/html" in headers.get("accept", "")


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


def _may_scrape(scope: Scope, headers: Headers) -> bool:
    """Whether this is a scrape of the metrics from this machine, by a name of this machine.

    Another name may be one that a web page had its own server's address changed for: its visitor's
    browser would read them to it.
    """
    own = scope["path"] == "/metrics" and auth.is_loopback(address_of(scope))
    return own and auth.is_to_this_machine(headers)


def address_of(scope: Scope) -> str:
    """Where a request comes from; nothing when the server cannot tell."""
    client: tuple[str, int] | None = scope.get("client")
    return client[0] if client else ""


def _answer(error: ApiError) -> JSONResponse:
    return JSONResponse(error.envelope(), error.status, error.headers)


def slow_down(refused: ApiError, wait: float) -> JSONResponse:
    """The 429 for one failed attempt too many. Clients are told not to repeat it by themselves."""
    message = f"{refused.message} There were too many such attempts from this address."
    headers = {"retry-after": str(ceil(wait)), "x-should-retry": "false"}
    code, hint = "too_many_failed_attempts", "Check the token."
    return _answer(ApiError(429, message, code=code, hint=hint, headers=headers))


_TOO_LONG = f"The body is longer than {MAX_BODY_BYTES} bytes; send large data as a file."
