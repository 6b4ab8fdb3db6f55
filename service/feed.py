"""What the viewers of one job share: its newest events, and what was read of the journal for them.

Each viewer has no more than its place among the events. Whoever is further behind than the newest
ones reach, or has come back after a while, is told what the journal has, which is read once for all
who are near the same place. So one that is behind costs no more than one that keeps up.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from .jobs import EventRecord
from .journal import Journal
from .reader import Reader
from .turns import Turns

RECENT_EVENTS = 1024  # of a job, for all its viewers
TOLD_TOGETHER = 200  # events at most in one piece: encoding them takes milliseconds of the loop
PAGES = 16  # of so many events, that whoever comes to the same place need not read again

Item = EventRecord | dict[str, Any]
Page = tuple[Sequence[EventRecord], int]  # events, and up to which number that is all


class Feed:
    """The feed of one job on one event loop; used on that loop alone."""

    def __init__(self, job_id: str, turns: Turns, reader: Reader) -> None:
        self.job_id = job_id
        self.viewers: set[Viewer] = set()
        self.telemetry: dict[str, Any] | None = None
        self._turns = turns
        self._reader = reader
        self._recent: deque[EventRecord] = deque()
        self._before: int | None = None  # all events above this number are among the recent ones
        self._pages: OrderedDict[int, asyncio.Future[Page]] = OrderedDict()  # by what is before
        self._read_step = 0  # the highest step in them
        self._idle: set[asyncio.Event] = set()

    def take_in(self, item: Item) -> None:
        """Keep what has happened, and give those who wait for it their turn."""
        if isinstance(item, dict):
            self.telemetry = item
        elif self._before is not None and item.seq <= self._before:
            return  # was in the journal already when the first viewer looked there
        else:
            self._before = item.seq - 1 if self._before is None else self._before
            self._recent.append(item)
            if len(self._recent) > RECENT_EVENTS:
                self._before = self._recent.popleft().seq
            if self._is_done_again(item):
                self._pages.clear()
        self._turns.queue(self._idle)
        self._idle.clear()
        if isinstance(item, EventRecord) and item.type == "status":
            self._turns.hurry()

    async def begin(self, journal: Journal) -> None:
        """Find out what is older than the events that are taken in, once."""
        if self._before is None:
            newest = await self._reader.ask(journal.last_event_seq, self.job_id)
            self._before = newest if self._before is None else self._before

    async def after(self, journal: Journal, viewer: "Viewer", seq: int) -> Page:
        """The next events above `seq`, once it is the viewer's turn.

        May be none, when there is other news or when it is to be called again.
        """
        assert self._before is not None
        if seq < self._before:
            page, reached = await self._page(journal, seq)
            missed = [event for event in page if event.seq > seq]
            if missed:
                await self._turn(viewer, is_idle=False)
            return missed, max(seq, reached)
        is_idle = not self._newer(seq) and viewer.telemetry is self.telemetry
        await self._turn(viewer, is_idle=is_idle)
        if seq < self._before:
            return (), seq  # it waited for so long that the recent ones do not reach back to it
        newer = self._newer(seq)[:TOLD_TOGETHER]
        return newer, newer[-1].seq if newer else seq

    def _newer(self, seq: int) -> list[EventRecord]:
        return list(takewhile(lambda event: event.seq > seq, reversed(self._recent)))[::-1]

    async def _turn(self, viewer: "Viewer", *, is_idle: bool) -> None:
        """Wait for the viewer's turn; one that is idle is given it when something happens."""
        viewer.ready.clear()
        if is_idle:
            self._idle.add(viewer.ready)
        else:
            self._turns.queue((viewer.ready,))
        try:
            await viewer.ready.wait()
        finally:
            self._idle.discard(viewer.ready)

    def _page(self, journal: Journal, seq: int) -> asyncio.Future[Page]:
        """What the journal has above `seq`, and a little of what is before.

        Read once for all who ask from about there, now or a little later: pages begin at multiples
        of their length, so that two who are a few events apart share what both still miss.
        """
        start = seq - seq % TOLD_TOGETHER
        page = self._pages.get(start)
        if page is None or (page.done() and page.result()[1] <= seq):  # there was no more by then
            page = self._pages[start] = asyncio.ensure_future(self._read(journal, start))
            if len(self._pages) > PAGES:
                self._pages.popitem(last=False)
        return asyncio.shield(page)  # one who asked may leave

    async def _read(self, journal: Journal, start: int) -> Page:
        before, page = self._before or 0, self._pages.get(start)
        newest = self._recent[-1].seq if self._recent else before
        is_good = False
        try:
            ask = self._reader.ask
            events = await ask(journal.events_since, self.job_id, start, limit=TOLD_TOGETHER)
            self._read_step = max([self._read_step, *(event.step or 0 for event in events)])
            is_good = not any(map(self._is_done_again, self._newer(newest)))
        finally:
            if not is_good and self._pages.get(start) is page:
                self._pages.pop(start, None)
        reached = events[-1].seq if events else before
        return events, reached if len(events) == TOLD_TOGETHER else max(reached, before)

    def _is_done_again(self, event: EventRecord) -> bool:
        """Whether the journal may have dropped an event that was read, for this one.

        A run that goes on after a crash does steps again, and what it says of them replaces what
        was said of them before.
        """
        return event.step is not None and event.step <= self._read_step


@dataclass(eq=False, slots=True)
class Viewer:
    """One reader of a job's events. Lives on the event loop that made it."""

    feed: Feed
    telemetry: dict[str, Any] | None = None  # the last that it was told
    ready: asyncio.Event = field(default_factory=asyncio.Event)
