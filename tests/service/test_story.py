"""What a viewer is told: every event, or step reports at a bounded rate, the newest always."""

from typing import Any

from headrace.service.feed import Item
from headrace.service.jobs import EventRecord
from headrace.service.story import REMEMBERED, Encoder, Thinner, encode


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def event(seq: int, kind: str = "metrics", **changed: Any) -> EventRecord:
    values: dict[str, Any] = {"level": "info", "message": "", "data": {}, "created_at": 1}
    return EventRecord(id=f"e-{seq}", job_id="j", seq=seq, type=kind, **values | changed)


def told(thinner: Thinner, items: list[Item]) -> list[Any]:
    found = [one for item in items for one in thinner.take(item)]
    return [one.seq if isinstance(one, EventRecord) else "tier" for one in found]


def test_without_a_rate_everything_is_told() -> None:
    items: list[Item] = [event(1), event(2), {"rss": 1}, event(3, "commit")]
    assert told(Thinner(None), items) == [1, 2, "tier", 3]


def test_fast_steps_are_thinned_and_the_newest_comes_when_it_is_due() -> None:
    clock = Clock()
    thinner = Thinner(2, clock)
    assert told(thinner, [event(1), event(2), event(3)]) == [1]
    clock.seconds = 0.4
    assert told(thinner, [{"rss": 1}]) == ["tier"], "not due yet"
    clock.seconds = 0.6
    assert told(thinner, [{"rss": 1}]) == [3, "tier"]
    assert told(thinner, [event(4)]) == [], "the one told last counts"
    clock.seconds = 1.2
    assert told(thinner, [event(5)]) == [5]


def test_what_is_no_step_comes_at_once_after_the_step_before_it() -> None:
    thinner = Thinner(1, Clock())
    items: list[Item] = [event(1), event(2), event(3, "status"), event(4, "message")]
    assert told(thinner, items) == [1, 2, 3, 4]


def test_an_event_is_encoded_once_for_all_viewers() -> None:
    encoder = Encoder()
    first = encoder(event(7, "message", level="warn"))
    assert first.startswith(b"id: 7\r\nevent: warning\r\ndata: {") and first.endswith(b"\r\n\r\n")
    assert encoder(event(7, "message", level="warn")) is first
    for seq in range(100, 100 + REMEMBERED):
        encoder(event(seq))
    assert encoder(event(7, "message", level="warn")) is not first, "memory is bounded"


def test_telemetry_has_no_number() -> None:
    assert Encoder()({"step": 1}) == b'event: tier\r\ndata: {"data":{"step":1}}\r\n\r\n'
    assert encode("done", {}) == b"event: done\r\ndata: {}\r\n\r\n"
