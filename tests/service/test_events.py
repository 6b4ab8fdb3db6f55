import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes_daemon import some_job
from headrace.service.events import Hub, follow
from headrace.service.feed import RECENT_EVENTS, TOLD_TOGETHER, Item
from headrace.service.jobs import EventRecord, JobRecord
from headrace.service.journal import Journal
from headrace.service.turns import Turns


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def journal(tmp_path: Path, hub: Hub) -> Iterator[Journal]:
    journal = Journal.open(tmp_path / "headrace.db", hub)
    yield journal
    journal.close()


@pytest.fixture
def job(journal: Journal) -> JobRecord:
    return journal.add_job(some_job())


def say(journal: Journal, job: JobRecord, count: int) -> None:
    """Add that many events."""
    for _ in range(count):
        journal.add_event(job.id, type="message", level="info", message="hello")


async def watch(journal: Journal, hub: Hub, job: JobRecord, *, after: int, act: Any) -> list[Item]:
    """Everything a viewer sees while `act` runs in a thread, up to the job's end."""
    with hub.view(job.id) as viewer:
        acting = asyncio.create_task(asyncio.to_thread(act))
        async with asyncio.timeout(20):
            seen = [item async for items in follow(journal, viewer, after) for item in items]
            await acting
    return seen


def seqs(items: list[Item]) -> list[int]:
    """The numbers of the events among them."""
    return [item.seq for item in items if isinstance(item, EventRecord)]


def test_replay_and_live_meet_without_gap_or_double(
    journal: Journal, hub: Hub, job: JobRecord
) -> None:
    say(journal, job, 30)

    def act() -> None:
        say(journal, job, 30)
        journal.move(job.id, "cancelled")

    seen = asyncio.run(watch(journal, hub, job, after=5, act=act))
    assert seqs(seen) == list(range(6, 63))


def test_a_viewer_that_falls_behind_misses_nothing(
    journal: Journal, hub: Hub, job: JobRecord
) -> None:
    count = RECENT_EVENTS + TOLD_TOGETHER

    async def watch_slowly() -> list[Item]:
        seen: list[Item] = []
        with hub.view(job.id) as viewer:
            stream = follow(journal, viewer, 0)
            seen += await anext(stream)
            await asyncio.to_thread(say, journal, job, count)
            await asyncio.to_thread(journal.move, job.id, "cancelled")
            seen += [item async for items in stream for item in items]
        return seen

    assert seqs(asyncio.run(watch_slowly())) == list(range(1, count + 3))


class Reads:
    """Counts how often events are read of the journal."""

    def __init__(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        self.after: list[int] = []
        real = journal.events_since

        def events_since(job_id: str, after_seq: int, *, limit: int = 500) -> list[EventRecord]:
            self.after.append(after_seq)
            return real(job_id, after_seq, limit=limit)

        monkeypatch.setattr(journal, "events_since", events_since)


async def watch_together(
    journal: Journal, hub: Hub, job: JobRecord, *, after: list[int], act: Callable[[], None]
) -> tuple[list[list[int]], int]:
    """What each of many viewers sees, and in how many pieces all together are told."""
    pieces = 0

    async def look(place: int, told: list[int]) -> None:
        nonlocal pieces
        with hub.view(job.id) as viewer:
            async for items in follow(journal, viewer, place):
                told += seqs(items)
                pieces += 1

    told: list[list[int]] = [[] for _ in after]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for place, mine in zip(after, told, strict=True):
            group.create_task(look(place, mine))
        group.create_task(asyncio.to_thread(act))
    return told, pieces


def wait_for_pages(reads: Reads, count: int) -> None:
    """Until so many pages of the journal were asked for."""
    while len(set(reads.after)) < count:
        time.sleep(0.01)


def test_many_viewers_who_missed_the_same_read_the_journal_once(
    journal: Journal, hub: Hub, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3 * TOLD_TOGETHER
    say(journal, job, count)
    reads = Reads(journal, monkeypatch)

    def end() -> None:
        wait_for_pages(reads, 3)  # that all of them want
        journal.move(job.id, "cancelled")

    watching = watch_together(journal, hub, job, after=[0] * 100, act=end)
    told, _ = asyncio.run(watching)
    assert told == [list(range(1, count + 3))] * 100
    assert len(reads.after) == len(set(reads.after)) <= 4


def test_many_viewers_at_different_places_share_what_they_read(
    journal: Journal, hub: Hub, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart, when each comes back with the number of the event that it saw last."""
    count = 3 * TOLD_TOGETHER
    say(journal, job, count)
    reads = Reads(journal, monkeypatch)
    places = list(range(0, 300, 3))

    def end() -> None:
        wait_for_pages(reads, 3)
        journal.move(job.id, "cancelled")

    told, _ = asyncio.run(watch_together(journal, hub, job, after=places, act=end))
    assert told == [list(range(place + 1, count + 3)) for place in places]
    assert len(reads.after) <= 6, "pages, of which the last may be read again"


def test_viewers_leave_the_journal_alone_once_they_have_what_they_missed(
    journal: Journal, hub: Hub, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast events come while a viewer reads: a read that finds something is not a reason
    to read again. Viewers that did kept each other behind for as long as the job ran."""
    real, lock = journal.events_since, threading.Lock()
    reads = 0

    def overtaken(job_id: str, after_seq: int, *, limit: int = 500) -> list[EventRecord]:
        nonlocal reads
        with lock:
            reads += 1
        say(journal, job, 1)  # comes while the journal is read
        found = real(job_id, after_seq, limit=limit)
        say(journal, job, 1)
        if reads >= 50:
            journal.move(job.id, "cancelled")
        return found

    monkeypatch.setattr(journal, "events_since", overtaken)

    def end() -> None:
        while not reads:
            time.sleep(0.01)
        time.sleep(0.5)
        if reads < 50:
            journal.move(job.id, "cancelled")

    told, _ = asyncio.run(watch_together(journal, hub, job, after=[0] * 20, act=end))
    assert reads <= 2
    assert told == [list(range(1, 2 * reads + 3))] * 20


def test_a_burst_is_told_in_few_pieces(
    journal: Journal, hub: Hub, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event in every round of the loop, whose rounds are no longer than its telling takes."""
    num_viewers, num_events = 100, 200
    heard: list[EventRecord] = []
    hub.add_listener(heard.append)
    say(journal, job, num_events)
    journal.move(job.id, "cancelled")
    monkeypatch.setattr(journal, "last_event_seq", lambda job_id: 1)  # what comes is not there yet
    monkeypatch.setattr(journal, "events_since", lambda *_, **__: [])

    async def burst() -> tuple[list[list[int]], int]:
        watching = asyncio.create_task(
            watch_together(journal, hub, job, after=[1] * num_viewers, act=lambda: None)
        )
        while hub.num_viewers < num_viewers:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        for event in list(heard):
            hub.publish(event)
            await asyncio.sleep(0)
        return await watching

    told, pieces = asyncio.run(burst())
    assert told == [list(range(2, num_events + 3))] * num_viewers
    assert pieces <= 4 * num_viewers


def test_only_a_change_of_status_is_told_without_rests(
    journal: Journal, hub: Hub, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried: list[int] = []
    real = Turns.hurry

    def hurry(turns: Turns) -> None:
        hurried.append(journal.last_event_seq(job.id))
        real(turns)

    monkeypatch.setattr(Turns, "hurry", hurry)

    async def act() -> None:
        with hub.view(job.id):
            await asyncio.to_thread(say, journal, job, 3)
            hub.publish_telemetry(job.id, {"step": 1})
            await asyncio.sleep(0)
            await asyncio.to_thread(journal.move, job.id, "cancelled")
            await asyncio.sleep(0)

    asyncio.run(act())
    assert hurried == [5]


def test_a_step_done_again_is_not_told_from_what_was_read_before(
    journal: Journal, hub: Hub, job: JobRecord
) -> None:
    def step(number: int) -> None:
        journal.add_event(job.id, type="metrics", level="info", message="a step", step=number)

    for number in range(1, TOLD_TOGETHER + 1):
        step(number)

    async def replay() -> list[int]:
        with hub.view(job.id) as viewer:
            return seqs(await anext(follow(journal, viewer, 0)))

    async def come_in_turn() -> list[list[int]]:
        with hub.view(job.id):  # who stays, so that what was read is kept
            before = [await replay(), await replay()]
            await asyncio.to_thread(step, 7)
            return [*before, await replay()]

    first, same, anew = asyncio.run(come_in_turn())
    assert first == same == list(range(1, TOLD_TOGETHER + 1))
    assert anew == [seq for seq in range(1, TOLD_TOGETHER + 2) if seq != 8]


def test_a_viewer_sees_its_own_job_only(journal: Journal, hub: Hub, job: JobRecord) -> None:
    other = journal.add_job(some_job())

    def act() -> None:
        say(journal, other, 3)
        journal.move(other.id, "cancelled")
        journal.move(job.id, "cancelled")

    seen = asyncio.run(watch(journal, hub, job, after=0, act=act))
    assert {item.job_id for item in seen if isinstance(item, EventRecord)} == {job.id}


def test_telemetry_shows_the_newest_only(journal: Journal, hub: Hub, job: JobRecord) -> None:
    async def look() -> Item:
        with hub.view(job.id) as viewer:
            for step in range(100):
                hub.publish_telemetry(job.id, {"step": step})
            await asyncio.sleep(0)
            return (await anext(follow(journal, viewer, 1)))[-1]

    assert asyncio.run(look()) == {"step": 99}


def test_viewers_that_left_are_forgotten(hub: Hub) -> None:
    async def come_and_go() -> tuple[int, int]:
        with hub.view("ftjob-1"), hub.view("ftjob-1"):
            during = hub.num_viewers
        return during, hub.num_viewers

    assert asyncio.run(come_and_go()) == (2, 0)


def test_publishing_to_a_viewer_whose_loop_is_gone_does_no_harm(
    journal: Journal, hub: Hub, job: JobRecord
) -> None:
    async def leave_open() -> Any:
        view = hub.view(job.id)
        view.__enter__()
        return view

    view = asyncio.run(leave_open())
    say(journal, job, 1)
    assert hub.num_viewers == 1
    view.__exit__(None, None, None)


def test_listeners_hear_every_event(journal: Journal, hub: Hub, job: JobRecord) -> None:
    heard: list[EventRecord] = []
    hub.add_listener(heard.append)
    say(journal, job, 2)
    assert seqs([*heard]) == [2, 3]
