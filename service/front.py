"""What answers while the app is still being made, which takes longer than listening.

The process lives, so /livez says so; no job can be taken yet, which is what the other probes tell.
Everything else waits for the app and is answered by it.
"""

import asyncio
import json
import secrets
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import ApiError, not_ready

OPEN_PATHS = frozenset({"/livez", "/readyz", "/healthz"})  # probes, which need no token
ALIVE = {"status": "ok"}


def new_request_id() -> str:
    """A value for `x-request-id`, which every answer carries."""
    return "req_" + secrets.token_hex(12)


class Front:
    """The ASGI app that the server is given; passes all on to another one once it is there."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._settled = asyncio.Event()

    def pass_on_to(self, app: ASGIApp) -> None:
        """From now on, and for those who wait, `app` answers."""
        self._app = app
        self._settled.set()

    def give_up(self) -> None:
        """No app will come, if none has; those who wait, and whoever asks from now on, are told."""
        self._settled.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a probe or wait, while there is no app."""
        if not self._settled.is_set() and scope["type"] == "http" and scope["method"] == "GET":
            if scope["path"] == "/livez":
                return await _answer(send, 200, ALIVE)
            if scope["path"] in OPEN_PATHS:
                return await _answer(send, 503, not_ready(["the daemon is starting"]))
        await self._settled.wait()
        if self._app is not None:
            return await self._app(scope, receive, send)
        message = "The daemon ends before it could answer: it was stopped, or its start failed."
        hint = "Why a start failed stands on the daemon's standard error."
        await _answer(send, 503, ApiError(503, message, code="not_ready", hint=hint).envelope())


async def _answer(send: Send, status: int, body: Any) -> None:
    content = json.dumps(body, separators=(",", ":")).encode()
    headers = [
        (b"content-length", str(len(content)).encode()),
        (b"content-type", b"application/json"),
        (b"x-request-id", new_request_id().encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
