"""The HTTP server around the daemon: its start and its end belong to the server's own."""

import asyncio
import os
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

GRACE_SECONDS = 3  # open streams are cut off after that, so that a viewer never holds up the end


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. OSError when the address is not to be had.

    Its connections send small pieces at once: an answer's head and body are two of them, and the
    second would wait 40 ms for the client's delayed acknowledgement of the first. asyncio sees to
    that only for sockets that were made with a protocol number.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=2048)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def address(sock: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: FastAPI, sock: socket.socket, *, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, which then ends the process. Raises what the start raises."""
    server = Server(app, on_ready)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[sock]))


class Server(uvicorn.Server):
    """Ends gracefully on the first signal, at once on the next.

    At once is safe: the journal is whole at any moment, and the worker commits the step in hand
    when the API goes away.
    """

    def __init__(self, app: FastAPI, on_ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
                lifespan="off",
            )
        )
        self._app = app
        self._on_ready = on_ready

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app, serve, stop the app; a signal counts from the first moment to the last.

        uvicorn's own way would log a failed start as a traceback and drop the reason.
        """
        with self.capture_signals():
            async with self._app.router.lifespan_context(self._app):
                if not self.should_exit:
                    self._on_ready()
                    await self._serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the first signal, obey the second."""
        if self.should_exit:
            os._exit(128 + sig)
        super().handle_exit(sig, frame)
