"""The HTTP server around the daemon: it listens first, and ends last.

The app is made, and what it is made of imported, on a thread while the probes are answered.
"""

import asyncio
import gc
import os
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from .connections import Connection, max_connections, raise_open_files
from .front import Front
from .systemd import Notifier

if TYPE_CHECKING:
    from fastapi import FastAPI

    from .contract import Daemon

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


def run(
    make_app: "Callable[[], FastAPI]", sock: socket.socket, *, on_ready: Callable[[], None]
) -> None:
    """Serve until SIGTERM or SIGINT, which then ends the process. Raises what the start raises.

    `make_app` is called on a thread, with the socket listening already; `on_ready` when the app
    answers.
    """
    Connection.most = max_connections(raise_open_files())
    server = Server(make_app, on_ready, Notifier.of())
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(server.serve(sockets=[sock]))


class Server(uvicorn.Server):
    """Ends gracefully on the first signal, at once on the next.

    While the worker finishes the step in hand, requests and streams are still answered, so that
    everyone sees the end; then the streams are cut. At once is safe: the journal is whole at any
    moment, and the worker commits the step in hand when the API goes away.
    """

    def __init__(
        self,
        make_app: "Callable[[], FastAPI]",
        on_ready: Callable[[], None],
        notifier: Notifier,
    ) -> None:
        self._front = Front()
        super().__init__(
            uvicorn.Config(
                self._front,
                http=Connection,
                ws="none",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
                lifespan="off",
            )
        )
        self._make_app = make_app
        self._on_ready = on_ready
        self._notifier = notifier
        self._signalled = False
        self._draining: asyncio.Task[None] | None = None
        self._daemon: Daemon | None = None  # once it has started
        self._served = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer at once, with the app as soon as it has started, and stop it when nobody is left
        to answer. A signal counts from the first moment to the last.

        uvicorn's own way would log a failed start as a traceback and drop the reason.
        """
        with self.capture_signals():
            behind = asyncio.create_task(self._run_app())
            try:
                await self._serve(sockets)
            finally:
                self._served.set()
                await behind

    async def _run_app(self) -> None:
        """Make and start the app, and stop it when the last answer is out."""
        try:
            app = await asyncio.to_thread(self._make_app)
            gc.freeze()  # collections walk what requests make, not the hundred thousands of imports
            if self._signalled:
                return
            async with app.router.lifespan_context(app):
                self._daemon = daemon = app.state.daemon
                self._front.pass_on_to(app)
                if not self._signalled:
                    self._on_ready()
                    self._notifier.tell(READY=1, STATUS=daemon.in_words(), MAINPID=os.getpid())
                beat = self._notifier.beat(daemon.in_words, lambda: self._signalled)
                beating = asyncio.create_task(beat)
                try:
                    await self._served.wait()
                finally:
                    beating.cancel()
        finally:
            self._front.give_up()
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """What uvicorn does ten times a second; after a signal, also see to the end."""
        if self._signalled and self._draining is None and self._daemon is not None:
            self._draining = asyncio.create_task(self._drain(self._daemon))
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the first signal, obey the second."""
        if self._signalled:
            os._exit(128 + sig)
        self._signalled = True
        self._captured_signals.append(sig)
        self._notifier.tell(STOPPING=1, STATUS="finishing the step in hand")

    async def _drain(self, daemon: "Daemon") -> None:
        try:
            await daemon.drain()
        finally:
            self.should_exit = True
