"""Live fan-out: whatever the journal takes in reaches every viewer, and waits for none.

Nothing is lost and nothing comes twice; memory stays bounded, and so does what all viewers together
take of the event loop (`turns.py`) and of the journal (`reader.py`). Telemetry is newest-wins and
has no number.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from .feed import Feed, Item, Viewer
from .jobs import TERMINAL, EventRecord
from .journal import Journal
from .reader import Reader
from .turns import Turns


class Hub:
    """Takes events from any thread and hands them to the viewers of their job."""

    def __init__(self) -> None:
        self.reader = Reader()
        self._lock = Lock()
        self._feeds: dict[str, dict[asyncio.AbstractEventLoop, Feed]] = {}
        self._turns: dict[asyncio.AbstractEventLoop, Turns] = {}
        self._listeners: list[Callable[[EventRecord], None]] = []
        self._telemetry: tuple[str, dict[str, Any]] | None = None  # one job runs at a time

    def add_listener(self, listener: Callable[[EventRecord], None]) -> None:
        """Call `listener` with every event, on the thread that publishes; it must not block."""
        self._listeners.append(listener)

    def publish(self, event: EventRecord) -> None:
        """Hand an event to its job's viewers; never blocks."""
        for listener in self._listeners:
            listener(event)
        self._hand_on(event.job_id, event)

    def publish_telemetry(self, job_id: str, data: dict[str, Any]) -> None:
        """Hand the newest numbers of a job to its viewers; older ones may never be seen."""
        self._telemetry = (job_id, data)
        self._hand_on(job_id, data)

    def telemetry(self, job_id: str) -> dict[str, Any] | None:
        """The newest numbers of a job that runs; None before the first."""
        newest = self._telemetry
        return newest[1] if newest and newest[0] == job_id else None

    @contextmanager
    def view(self, job_id: str) -> Iterator[Viewer]:
        """Watch a job from now on. To be used on an event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            turns = self._turns.setdefault(loop, Turns(loop))
            feeds = self._feeds.setdefault(job_id, {})
            feed = feeds.setdefault(loop, Feed(job_id, turns, self.reader))
            viewer = Viewer(feed, feed.telemetry)
            feed.viewers.add(viewer)
        try:
            yield viewer
        finally:
            with self._lock:
                feed.viewers.discard(viewer)
                if not feed.viewers:
                    del feeds[loop]
                if not feeds:
                    del self._feeds[job_id]

    @property
    def num_viewers(self) -> int:
        """Viewers there are now."""
        with self._lock:
            feeds = [feed for each in self._feeds.values() for feed in each.values()]
            return sum(len(feed.viewers) for feed in feeds)

    def _hand_on(self, job_id: str, item: Item) -> None:
        with self._lock:
            feeds = list(self._feeds.get(job_id, {}).items())
        for loop, feed in feeds:
            if not loop.is_closed():
                loop.call_soon_threadsafe(feed.take_in, item)


async def follow(
    journal: Journal, viewer: Viewer, after_seq: int, *, last_seq: int | None = None
) -> AsyncIterator[list[Item]]:
    """Every event after `after_seq`, each once and in order, then live; telemetry in between.

    What is there when the viewer's turn comes is told together. Ends after the event that ends the
    job; of a job that was over already, with its `last_seq`, since what a process says as it ends
    may come behind the end of its job. The viewer must be watching already, so that nothing falls
    between the replay and the live part.
    """
    feed, seq = viewer.feed, after_seq
    await feed.begin(journal)
    while True:
        events, seq = await feed.after(journal, viewer, seq)
        told, over = _up_to_end(events) if last_seq is None else (events, seq >= last_seq)
        items: list[Item] = list(told)
        if not over and feed.telemetry is not None and feed.telemetry is not viewer.telemetry:
            viewer.telemetry = feed.telemetry
            items.append(feed.telemetry)
        if items:
            yield items
        if over:
            return


def _up_to_end(events: Sequence[EventRecord]) -> tuple[Sequence[EventRecord], bool]:
    """The events up to the one that ends the job, and whether it is among them."""
    for i, event in enumerate(events):
        if ends(event):
            return events[: i + 1], True
    return events, False


def ends(event: EventRecord) -> bool:
    """Whether the job is over with that event."""
    return event.type == "status" and (event.data or {}).get("status") in TERMINAL
