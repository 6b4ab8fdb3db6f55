"""Connections of the HTTP server: how many there may be, and how long one may say nothing.

Each takes one of the process's open files, which the journal and the jobs' logs need as well. So a
client that opens connections and sends no request, or half of one, or takes nothing of its answer,
must not be able to have them all: it is let go of after a while, and at once when others have no
room.
"""

import asyncio
import resource
import socket
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 30.0  # for the head of a request to be whole
BODY_SECONDS = 60.0  # between two pieces of its body, while we are ready to read them
ANSWER_SECONDS = 60.0  # for a client to take anything of what we have for it
MAX_OPEN_FILES = 65_536
KEPT_SHARE = 4  # one in so many open files is kept for everything but connections


def raise_open_files(most: int = MAX_OPEN_FILES) -> int:
    """Let this process open as many files as the system allows it, up to `most`; how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else soft


def max_connections(open_files: int) -> int:
    """Connections that a process with so many open files may hold."""
    return max(1, open_files - open_files // KEPT_SHARE)


class Connection(H11Protocol):
    """One client. It is cut off when a request that it owes us does not come.

    So is one that takes nothing of an answer. The kernel sees to that: a transport that is closed
    keeps what it still holds, and its open file, for as long as the client's machine lives.

    A connection over `most` takes the place of the one that has owed a request the longest; where
    none does, it is refused. What is answered and takes it, an open stream say, is never cut off.
    """

    most = max_connections(1024)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.owing_since: float | None = None
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the client in, if there is room or some can be made."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * ANSWER_SECONDS))
        self._watch()
        if len(self.connections) > self.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._stop_watching()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes in, then see what the client still owes."""
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        """Set the time by which the client must have sent more.

        That for a head is not put off by each of its bytes, that for a body is by each piece.
        """
        state = self.conn.their_state
        if state is h11.IDLE and not self.transport.is_closing():
            if self.owing_since is None:
                self._stop_watching()
                self.owing_since = self.loop.time()
                self._waiting = self.loop.call_later(REQUEST_SECONDS, self._let_go)
            return
        self._stop_watching()
        if state is h11.SEND_BODY and not self.transport.is_closing():
            self._waiting = self.loop.call_later(BODY_SECONDS, self._let_go)

    def _stop_watching(self) -> None:
        self.owing_since = None
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _let_go(self) -> None:
        if self.flow.read_paused:  # it is we who do not read
            self._waiting = self.loop.call_later(BODY_SECONDS, self._let_go)
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        others = [one for one in self.connections if one is not self]
        owing = [
            (one.owing_since, one)
            for one in others
            if isinstance(one, Connection) and one.owing_since is not None
        ]
        _, leaving = min(owing, key=lambda pair: pair[0], default=(0.0, self))
        leaving.transport.abort()
