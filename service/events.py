"""Live fan-out: whatever the journal takes in reaches every viewer, and waits for none.

A viewer has a bounded queue. One that falls behind is marked so and reads what it missed from the
journal, so that nothing is lost, nothing comes twice, and memory stays bounded. Telemetry is
newest-wins and has no number.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from .jobs import TERMINAL, EventRecord
from .journal import Journal

QUEUE_EVENTS = 256
WOKEN_AT_ONCE = 4  # each takes a fraction of a millisecond of the loop

Item = EventRecord | dict[str, Any]


@dataclass(eq=False, slots=True)
class Viewer:
    """One reader of a job's events. Lives on the event loop that made it."""

    job_id: str
    loop: asyncio.AbstractEventLoop
    queue: deque[EventRecord] = field(default_factory=deque)
    fell_behind: bool = False
    telemetry: dict[str, Any] | None = None
    in_turn: bool = False  # it waits to be woken
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, item: Item) -> None:
        """Take one item in, without waking who waits for it; on the loop of the viewer."""
        if isinstance(item, dict):
            self.telemetry = item
        elif len(self.queue) < QUEUE_EVENTS:
            self.queue.append(item)
        else:
            self.queue.clear()
            self.fell_behind = True


class Hub:
    """Takes events from any thread and hands them to the viewers of their job."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._viewers: dict[str, set[Viewer]] = {}
        self._listeners: list[Callable[[EventRecord], None]] = []
        self._telemetry: tuple[str, dict[str, Any]] | None = None  # one job runs at a time
        self._turns: dict[asyncio.AbstractEventLoop, _Turns] = {}

    def add_listener(self, listener: Callable[[EventRecord], None]) -> None:
        """Call `listener` with every event, on the thread that publishes; it must not block."""
        self._listeners.append(listener)

    def publish(self, event: EventRecord) -> None:
        """Hand an event to its job's viewers; never blocks."""
        for listener in self._listeners:
            listener(event)
        self._offer(event.job_id, event)

    def publish_telemetry(self, job_id: str, data: dict[str, Any]) -> None:
        """Hand the newest numbers of a job to its viewers; older ones may never be seen."""
        self._telemetry = (job_id, data)
        self._offer(job_id, data)

    def telemetry(self, job_id: str) -> dict[str, Any] | None:
        """The newest numbers of a job that runs; None before the first."""
        newest = self._telemetry
        return newest[1] if newest and newest[0] == job_id else None

    @contextmanager
    def view(self, job_id: str) -> Iterator[Viewer]:
        """Watch a job from now on. To be used on an event loop."""
        viewer = Viewer(job_id, asyncio.get_running_loop())
        with self._lock:
            self._turns.setdefault(viewer.loop, _Turns(viewer.loop))
            self._viewers.setdefault(job_id, set()).add(viewer)
        try:
            yield viewer
        finally:
            with self._lock:
                self._viewers[job_id].discard(viewer)
                if not self._viewers[job_id]:
                    del self._viewers[job_id]

    @property
    def num_viewers(self) -> int:
        """Viewers there are now."""
        with self._lock:
            return sum(map(len, self._viewers.values()))

    def _offer(self, job_id: str, item: Item) -> None:
        with self._lock:
            viewers = list(self._viewers.get(job_id, ()))
        for loop in {viewer.loop for viewer in viewers}:
            if not loop.is_closed():  # woken once, however many watch there
                theirs = [viewer for viewer in viewers if viewer.loop is loop]
                loop.call_soon_threadsafe(self._turns[loop].offer, theirs, item)


class _Turns:
    """Viewers of one loop, woken a few in each of its rounds: other requests come in between.

    However fast events come, no more are woken at once: who is still to be woken takes what has
    come meanwhile together.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Viewer] = deque()

    def offer(self, viewers: Sequence[Viewer], item: Item) -> None:
        """Give the item to all of them, and each its turn; on the loop."""
        is_running = bool(self._waiting)
        for viewer in viewers:
            viewer.offer(item)
            if not viewer.in_turn:
                viewer.in_turn = True
                self._waiting.append(viewer)
        if not is_running:
            self._wake()

    def _wake(self) -> None:
        for _ in range(min(WOKEN_AT_ONCE, len(self._waiting))):
            viewer = self._waiting.popleft()
            viewer.in_turn = False
            viewer.ready.set()
        if self._waiting:
            self._loop.call_soon(self._wake)


async def follow(journal: Journal, viewer: Viewer, after_seq: int) -> AsyncIterator[list[Item]]:
    """Every event after `after_seq`, each once and in order, then live; telemetry in between.

    What is there at one moment comes together. Ends after the event that ends the job. The viewer
    must be watching already, so that nothing falls between the replay and the live part.
    """
    viewer.fell_behind = True
    seq = after_seq
    while True:
        while viewer.fell_behind:
            viewer.fell_behind = False
            missed = journal.events_since
            while page := await journal.call(missed, viewer.job_id, seq):
                told, over = _up_to_end(page)
                seq = told[-1].seq
                yield list(told)
                if over:
                    return
        queued = [event for event in viewer.queue if event.seq > seq]
        viewer.queue.clear()
        if queued:
            told, over = _up_to_end(queued)
            seq = told[-1].seq
            yield list(told)
            if over:
                return
        elif viewer.telemetry is not None:
            telemetry, viewer.telemetry = viewer.telemetry, None
            yield [telemetry]
        else:
            viewer.ready.clear()
            await viewer.ready.wait()


def _up_to_end(events: Sequence[EventRecord]) -> tuple[Sequence[EventRecord], bool]:
    """The events up to the one that ends the job, and whether it is among them."""
    for i, event in enumerate(events):
        if ends(event):
            return events[: i + 1], True
    return events, False


def ends(event: EventRecord) -> bool:
    """Whether the job is over with that event."""
    return event.type == "status" and (event.data or {}).get("status") in TERMINAL
