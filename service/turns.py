"""Turns of those who are told what happens: together they take a bounded share of an event loop.

Few have their turn in one round of the loop, so that other requests come in between. Then all rest,
the longer the more of them there are and the longer the loop took for that round. So a loop that is
slow, or that others need, tells them later and not slower: who waits for a turn finds all that has
come meanwhile together, at the price of one.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

AT_ONCE = 4  # each takes a tenth of a millisecond of the loop
LONGEST_REST = 9  # times what a round took: many together have a tenth of the loop, one alone half
MAX_REST_SECONDS = 0.05  # after a round that something else held up


class Turns:
    """Wakes those who wait on one event loop, each once for every time it was queued."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[asyncio.Event] = deque()
        self._hurried = 0  # so many at the head of the queue have no rest before them
        self._began = 0.0
        self._is_running = False
        self._rest: asyncio.TimerHandle | None = None

    def queue(self, waiting: Iterable[asyncio.Event]) -> None:
        """Set each of these when its turn has come."""
        self._waiting.extend(waiting)
        if self._waiting and not self._is_running:
            self._is_running = True
            self._loop.call_soon(self._wake)

    def hurry(self) -> None:
        """Let all who wait now have their turn without rests in between."""
        self._hurried = len(self._waiting)
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._rest = None
        self._is_running = bool(self._waiting)
        if not self._waiting:
            return
        self._began = self._loop.time()
        woken = min(AT_ONCE, len(self._waiting))
        for _ in range(woken):
            self._waiting.popleft().set()
        self._hurried = max(0, self._hurried - woken)
        self._loop.call_soon(self._have_rest, woken + len(self._waiting))

    def _have_rest(self, num_waiting: int) -> None:
        """Once those who were woken have done what they do."""
        took = self._loop.time() - self._began
        rest = 0.0 if self._hurried else min(LONGEST_REST, num_waiting) * took
        self._rest = self._loop.call_later(min(rest, MAX_REST_SECONDS), self._wake)
