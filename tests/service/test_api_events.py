import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling, some_job
from headrace.service.client import ServerEvent, parse_events
from headrace.service.jobs import JobRecord

Served = tuple[FakeDaemon, httpx2.Client]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    daemon = FakeDaemon(tmp_path_factory.mktemp("events"))
    with calling(daemon) as client:
        yield daemon, client


@pytest.fixture
def daemon(served: Served) -> FakeDaemon:
    return served[0]


@pytest.fixture
def client(served: Served) -> httpx2.Client:
    return served[1]


@pytest.fixture
def job(daemon: FakeDaemon) -> JobRecord:
    return daemon.journal.add_job(some_job(status="running"))


def say(daemon: FakeDaemon, job: JobRecord, count: int, **changed: Any) -> None:
    """Add that many events."""
    for i in range(count):
        values: dict[str, Any] = {"type": "message", "level": "info", "message": f"event {i}"}
        daemon.journal.add_event(job.id, **values | changed)


def stream(client: httpx2.Client, job: JobRecord, **options: Any) -> Iterator[ServerEvent]:
    """The events of a stream until the server ends it."""
    path = f"/v1/fine_tuning/jobs/{job.id}/events/stream"
    with client.stream("GET", path, **options) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield from parse_events(answer.iter_lines())


def numbers(events: list[ServerEvent]) -> list[int]:
    """The numbers of the events that are of the job, not of the stream."""
    own = ("snapshot", "reset", "done", "tier")
    return [event.data["seq"] for event in events if event.event not in own]


def test_events_are_listed_in_the_openai_shape(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord
) -> None:
    daemon.journal.add_event(
        job.id,
        type="metrics",
        level="info",
        message="Step 1/3: training loss=2.00",
        step=1,
        data={"step": 1, "total_steps": 3, "train_loss": 2.0},
    )
    page = client.get(f"/v1/fine_tuning/jobs/{job.id}/events").json()
    newest, oldest = page["data"]
    assert (newest["object"], newest["type"]) == ("fine_tuning.job.event", "metrics")
    assert newest["data"]["train_loss"] == 2.0 and newest["level"] == "info"
    assert (oldest["type"], oldest["kind"]) == ("message", "status")
    assert (page["object"], page["has_more"]) == ("list", False)


def test_a_stream_tells_what_happens_and_ends_with_the_job(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord
) -> None:
    seen: list[ServerEvent] = []
    for event in stream(client, job):
        seen.append(event)
        if event.event == "snapshot":
            assert event.data["status"] == "running"
            say(daemon, job, 2)
            say(daemon, job, 1, type="metrics", step=1)
            say(daemon, job, 1, level="warn")
            daemon.journal.move(job.id, "cancelled")
    kinds = [event.event for event in seen]
    assert kinds == ["snapshot", "log", "log", "metrics", "warning", "status", "done"]
    assert numbers(seen) == [2, 3, 4, 5, 6]
    assert [event.id for event in seen[:-1]] == ["1", "2", "3", "4", "5", "6"]
    assert seen[-1].data["status"] == "cancelled"


@pytest.mark.parametrize(
    "options", [{"headers": {"last-event-id": "3"}}, {"params": {"last_event_id": 3}}]
)
def test_a_viewer_that_comes_back_gets_what_it_missed(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord, options: dict[str, Any]
) -> None:
    say(daemon, job, 5)
    daemon.journal.move(job.id, "succeeded")
    seen = list(stream(client, job, **options))
    assert (seen[0].event, seen[0].id) == ("snapshot", "3")
    assert numbers(seen) == [4, 5, 6, 7]
    assert seen[-1].event == "done"


def test_the_whole_story_can_be_asked_for(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord
) -> None:
    say(daemon, job, 3)
    daemon.journal.move(job.id, "succeeded")
    assert numbers(list(stream(client, job, params={"last_event_id": 0}))) == [1, 2, 3, 4, 5]


def test_a_viewer_that_has_seen_the_end_is_told_to_stay_away(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord
) -> None:
    daemon.journal.move(job.id, "succeeded")
    path = f"/v1/fine_tuning/jobs/{job.id}/events/stream"
    assert client.get(path, headers={"last-event-id": "2"}).status_code == 204
    assert [event.event for event in stream(client, job)] == ["snapshot", "done"]


def test_what_comes_behind_the_end_of_a_job_is_told_and_ends_too(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preparation that was cancelled still says what it had found."""
    monkeypatch.setattr("headrace.service.routes.events.PING_SECONDS", 3600)
    daemon.journal.move(job.id, "cancelled")
    say(daemon, job, 2)
    for seen, told in ((0, [1, 2, 3, 4]), (1, [2, 3, 4]), (2, [3, 4]), (3, [4])):
        events = list(stream(client, job, params={"last_event_id": seen}, timeout=20))
        assert numbers(events) == told and events[-1].event == "done", seen
    path = f"/v1/fine_tuning/jobs/{job.id}/events/stream"
    assert client.get(path, headers={"last-event-id": "4"}).status_code == 204


def test_a_viewer_from_another_story_starts_anew(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord
) -> None:
    for beyond in ("99", "9" * 30, "9" * 5000):  # Python reads numbers of up to 4,300 digits
        events = stream(client, job, headers={"last-event-id": beyond})
        reset, snapshot = next(events), next(events)
        assert (reset.event, reset.id, snapshot.event) == ("reset", "1", "snapshot")
    daemon.journal.move(job.id, "cancelled")
    assert numbers(list(events)) == [2]


def test_a_viewer_that_comes_back_to_what_was_removed_starts_anew(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord
) -> None:
    say(daemon, job, 3, type="phase")
    say(daemon, job, 1)
    daemon.journal.move(job.id, "succeeded")
    daemon.journal.shorten_stories(ended_before=2**40)
    reset, snapshot, done = stream(client, job, headers={"last-event-id": "3"})
    assert (reset.event, reset.id, snapshot.event, done.event) == ("reset", "6", "snapshot", "done")
    seen = list(stream(client, job, headers={"last-event-id": "4"}))
    assert [event.event for event in seen] == ["snapshot", "log", "status", "done"]
    assert numbers(list(stream(client, job, params={"last_event_id": 0}))) == [1, 5, 6]


def test_step_reports_come_as_slowly_as_a_viewer_asks(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord
) -> None:
    events = stream(client, job, params={"metrics_per_second": 0.01})
    next(events)
    for step in range(1, 30):
        say(daemon, job, 1, type="metrics", step=step)
    daemon.journal.move(job.id, "succeeded")
    steps = [event.data["step"] for event in events if event.event == "metrics"]
    assert steps == [1, 29]


@pytest.mark.parametrize("number", ["-1", "x", "1.5", "²"])
def test_an_id_that_is_no_number_is_refused(
    client: httpx2.Client, job: JobRecord, number: str
) -> None:
    path = f"/v1/fine_tuning/jobs/{job.id}/events/stream"
    answer = client.get(path, headers=[(b"last-event-id", number.encode())])
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "Last-Event-ID"


def test_telemetry_comes_without_a_number(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord
) -> None:
    for event in stream(client, job):
        if event.event == "snapshot":
            daemon.hub.publish_telemetry(job.id, {"step": 4})
        elif event.event == "tier":
            assert event.data == {"data": {"step": 4}}
            daemon.journal.move(job.id, "cancelled")


def test_a_paused_job_is_watched_on(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord
) -> None:
    events = stream(client, job)
    next(events)
    for status in ("paused", "queued", "cancelled"):
        daemon.journal.move(job.id, status)
    assert numbers(list(events)) == [2, 3, 4]


def test_a_viewer_that_leaves_is_forgotten(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord
) -> None:
    events = stream(client, job)
    next(events)
    assert daemon.hub.num_viewers == 1
    events.close()  # type: ignore[attr-defined]
    for _ in range(100):
        if daemon.hub.num_viewers == 0:
            break
        threading.Event().wait(0.05)
    assert daemon.hub.num_viewers == 0


def test_a_viewer_that_does_not_read_is_dropped_and_the_others_are_told_all(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.service.routes.events.SEND_TIMEOUT_SECONDS", 2.0)
    host, port = client.base_url.host, client.base_url.port
    assert port
    request = f"GET /v1/fine_tuning/jobs/{job.id}/events/stream HTTP/1.1\r\nhost: {host}\r\n\r\n"
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect((host, port))
        deaf.sendall(request.encode())
        events = stream(client, job)
        next(events)
        while daemon.hub.num_viewers < 2:
            threading.Event().wait(0.01)
        says = threading.Thread(
            target=say, args=(daemon, job, 200), kwargs={"message": "x" * 100_000}
        )
        says.start()  # beside the viewer that reads, which is to be dropped on no slow box
        told = [next(events) for _ in range(200)]
        says.join()
        for _ in range(800):
            if daemon.hub.num_viewers == 1:
                break
            threading.Event().wait(0.05)
        assert daemon.hub.num_viewers == 1
    daemon.journal.move(job.id, "cancelled")
    assert numbers([*told, *events]) == list(range(2, 203))


def test_a_hundred_viewers_see_the_same_story(
    client: httpx2.Client, daemon: FakeDaemon, job: JobRecord
) -> None:
    stories: list[list[int]] = []

    def watch(url: str) -> None:
        with httpx2.Client(base_url=url, timeout=20) as own:
            stories.append(numbers(list(stream(own, job, params={"last_event_id": 0}))))

    watchers = [threading.Thread(target=watch, args=(str(client.base_url),)) for _ in range(100)]
    for watcher in watchers:
        watcher.start()
    say(daemon, job, 50)
    daemon.journal.move(job.id, "succeeded")
    for watcher in watchers:
        watcher.join()
    assert stories == [list(range(1, 53))] * 100


def test_an_open_stream_does_not_hold_up_the_end(tmp_path_factory: pytest.TempPathFactory) -> None:
    daemon = FakeDaemon(tmp_path_factory.mktemp("end"))
    with calling(daemon) as client:
        events = stream(client, daemon.journal.add_job(some_job(status="running")))
        assert json.dumps(next(events).data)
    with pytest.raises(httpx2.TransportError):
        list(events)
