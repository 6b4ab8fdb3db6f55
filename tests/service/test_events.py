import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fakes_daemon import some_job
from headrace.service.events import QUEUE_EVENTS, WOKEN_AT_ONCE, Hub, Item, follow
from headrace.service.jobs import EventRecord, JobRecord
from headrace.service.journal import Journal


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
    count = 2 * QUEUE_EVENTS

    async def watch_slowly() -> list[Item]:
        seen: list[Item] = []
        with hub.view(job.id) as viewer:
            stream = follow(journal, viewer, 0)
            seen += await anext(stream)
            await asyncio.to_thread(say, journal, job, count)
            await asyncio.sleep(0)
            assert viewer.fell_behind and len(viewer.queue) <= QUEUE_EVENTS
            await asyncio.to_thread(journal.move, job.id, "cancelled")
            seen += [item async for items in stream for item in items]
        return seen

    assert seqs(asyncio.run(watch_slowly())) == list(range(1, count + 3))


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
            return (await anext(follow(journal, viewer, 1)))[0]

    assert asyncio.run(look()) == {"step": 99}


def test_however_fast_events_come_few_viewers_are_woken_in_a_round(hub: Hub) -> None:
    """Other requests have their turn in between: events that come while viewers are being woken
    wait for their turn with them and do not begin a wave of their own."""

    async def wake() -> list[int]:
        with ExitStack() as stack:
            viewers = [stack.enter_context(hub.view("job")) for _ in range(20 * WOKEN_AT_ONCE)]
            rounds, turns = list[int](), Counter[int]()
            for number in range(10 * len(viewers)):
                if number < 10:
                    hub.publish_telemetry("job", {"number": number})
                await asyncio.sleep(0)  # a round of the loop
                ready = [i for i, viewer in enumerate(viewers) if viewer.ready.is_set()]
                rounds.append(len(ready))
                turns.update(ready)
                for i in ready:
                    viewers[i].ready.clear()
            assert all(viewer.telemetry == {"number": 9} for viewer in viewers)
        # Who was woken while events came may come once more; the others had one turn for all.
        assert set(turns) == set(range(len(viewers)))
        assert turns.total() <= len(viewers) + 10 * WOKEN_AT_ONCE
        return rounds

    assert max(asyncio.run(wake())) <= WOKEN_AT_ONCE


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
