"""The HTTP server around the daemon: listens first, then starts; a second signal ends at once."""

import asyncio
import os
import socket
from types import FrameType
from typing import Any

import uvicorn

GRACE_SECONDS = 3  # open streams are cut off after that, so that a viewer never holds up the end


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. OSError when the address is not to be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


def address(sock: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: Any, sock: socket.socket) -> None:
    """Serve an ASGI app until SIGTERM or SIGINT. SystemExit when it does not start."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        lifespan="on",
    )
    server = Server(config)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[sock]))


class Server(uvicorn.Server):
    """Ends gracefully on the first signal, with the exit code of that signal, at once on the next.

    At once is safe: the journal is whole after any moment, and the worker commits the step in hand
    when the API goes away.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the first signal, obey the second."""
        if self.should_exit:
            os._exit(128 + sig)
        super().handle_exit(sig, frame)
