import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling, some_job
from headrace.service import status_feed
from headrace.service.client import ServerEvent, parse_events
from headrace.service.status_feed import StatusFeed

Served = tuple[FakeDaemon, httpx2.Client]


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(status_feed, "SECONDS", 0.02)
    daemon = FakeDaemon(tmp_path)
    with calling(daemon) as client:
        yield daemon, client


Step = tuple[Callable[[], Any], Callable[[dict[str, Any]], bool]]


def events_of(client: httpx2.Client, steps: list[Step]) -> Iterator[ServerEvent]:
    """The first event, then for each act the first one that tells of it."""
    with client.stream("GET", "/status/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = parse_events(answer.iter_lines())
        yield next(events)
        for act, is_told in steps:
            act()
            yield next(event for event in events if is_told(event.data))


def test_the_box_is_told_at_once_and_when_it_changes(served: Served) -> None:
    daemon, client = served
    job, hub, journal = some_job(), daemon.hub, daemon.journal
    numbers = {"read_gbps": 3.5}
    steps: list[Step] = [
        (lambda: journal.add_job(job), lambda told: [job.id] == [j["id"] for j in told["queue"]]),
        (
            lambda: journal.move(job.id, "running"),
            lambda told: bool(told["running"] and told["running"]["id"] == job.id),
        ),
        (
            lambda: hub.publish_telemetry(job.id, numbers),
            lambda told: bool(told["telemetry"] == numbers),
        ),
        (lambda: journal.move(job.id, "cancelled"), lambda told: told["running"] is None),
    ]
    first, *others = events_of(client, steps)
    assert (first.event, {event.event for event in others}) == ("snapshot", {"status"})
    assert first.data["object"] == "status" and first.data["queue"] == []
    assert others[-1].data["telemetry"] is None
    assert client.get("/status").json()["running"] is None


def test_a_box_where_nothing_happens_is_told_once_and_looked_at_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def look(_: Any) -> dict[str, Any]:
        nonlocal looks
        looks += 1
        return {"uptime_seconds": looks, "queue": []}

    monkeypatch.setattr(status_feed, "daemon_status", look)
    monkeypatch.setattr(status_feed, "SECONDS", 0.05)

    async def read(feed: StatusFeed, seen: list[Any]) -> None:
        async for status in feed.follow():
            seen.append(status)

    async def watch() -> list[list[Any]]:
        feed = StatusFeed(FakeDaemon(tmp_path))
        seen: list[list[Any]] = [[] for _ in range(20)]
        readers = [asyncio.create_task(read(feed, told)) for told in seen]
        await asyncio.sleep(0.5)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        return seen

    assert [len(told) for told in asyncio.run(watch())] == [1] * 20
    assert 2 <= looks <= 20, "one for each of twenty readers and ten rounds would be two hundred"
