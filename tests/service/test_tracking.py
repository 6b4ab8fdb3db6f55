"""Trackers get a run's numbers, and can neither end nor slow it."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fake_engine import step_report
from headrace.engine import RunEvent
from headrace.service import tracking
from headrace.service.errors import ApiError
from headrace.service.tensorboard_tracker import FOLDER
from headrace.service.tracking import Trackers, Tracking, check_integrations

TENSORBOARD = [{"type": "tensorboard"}]


class Heard:
    """A tracker that remembers, and may wait or fail."""

    def __init__(self, *, waits: threading.Event | None = None, fails: bool = False) -> None:
        self.events: list[RunEvent] = []
        self.is_closed = False
        self._waits = waits
        self._fails = fails

    def take(self, event: RunEvent) -> None:
        if self._waits:
            self._waits.wait()
        if self._fails:
            raise RuntimeError("the tracker is out of order")
        self.events.append(event)

    def close(self) -> None:
        self.is_closed = True


def said(text: str, **more: Any) -> RunEvent:
    return RunEvent(type="message", message=text, **more)


def step(number: int) -> RunEvent:
    return RunEvent(type="metrics", message="m", step=number, data=step_report(number, 9))


def wait_for_news(one: Tracking) -> str:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if news := one.news():
            return news
        time.sleep(0.01)
    raise AssertionError("no news within 10 s")


def test_tensorboard_shows_steps_and_evaluations(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    evaluation = RunEvent(
        type="eval", message="e", step=2, data={"eval_loss": 3.5, "eval_token_accuracy": 0.25}
    )
    with Trackers(TENSORBOARD, tmp_path) as trackers:
        for event in (said("hello"), step(1), step(2), evaluation):
            assert trackers.offer(event) == []
    found = EventAccumulator(str(tmp_path / FOLDER)).Reload()

    def series(tag: str) -> list[tuple[int, float]]:
        return [(one.step, float(one.tensor_proto.float_val[0])) for one in found.Tensors(tag)]

    assert series("train/loss") == [(1, 4.0), (2, 2.0)]
    assert series("eval/loss") == [(2, 3.5)] and series("eval/token_accuracy") == [(2, 0.25)]
    assert series("bytes/nvme_read") == [(1, 1000.0), (2, 1000.0)]
    assert series("seconds/step") == [(1, 0.5), (2, 0.5)]


def test_a_tracker_gets_every_event_in_order_and_is_closed() -> None:
    heard = Heard()
    one = Tracking("heard", lambda: heard)
    events = [said(str(i)) for i in range(100)]
    for event in events:
        one.offer(event)
    one.close()
    assert heard.events == events and heard.is_closed and one.news() is None


@pytest.mark.parametrize("where", ["made", "taken"])
def test_a_tracker_that_fails_is_told_once(where: str) -> None:
    def make() -> Heard:
        if where == "made":
            raise RuntimeError("the tracker is out of order")
        return Heard(fails=True)

    one = Tracking("heard", make)
    one.offer(said("a"))
    assert "heard gets no more of this run, which goes on: the tracker is out of order" == (
        wait_for_news(one)
    )
    one.offer(said("b"))
    assert one.news() is None
    one.close()


def test_a_tracker_that_hangs_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    waits = threading.Event()
    try:
        one = Tracking("slow", lambda: Heard(waits=waits), queue_events=5)
        began = time.monotonic()
        for i in range(1000):
            one.offer(said(str(i)))
        assert "more than 5 events behind" in (one.news() or "")
        other = Tracking("slow", lambda: Heard(waits=waits))
        other.offer(said("a"))
        other.close(seconds=0.1)
        assert time.monotonic() - began < 60, "it waited"
        assert "has not ended within 0.1 s" in caplog.text
    finally:
        waits.set()


def test_the_result_stays_the_last_word(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(_: Path) -> Heard:
        raise RuntimeError("no")

    monkeypatch.setitem(tracking.KNOWN, "tensorboard", (broken, "tensorboard", "tensorboard"))
    with Trackers(TENSORBOARD, tmp_path) as trackers:
        until = time.monotonic() + 60
        while not trackers._all[0]._trouble and time.monotonic() < until:
            time.sleep(0.01)
        assert trackers.offer(RunEvent(type="result", message="succeeded")) == []
        (warning,) = trackers.offer(said("a"))
        assert warning.level == "warn" and "tensorboard gets no more" in warning.message


def test_a_tracker_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_integrations({"integrations": TENSORBOARD})
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(ApiError, match="pip install") as refused:
        check_integrations({"integrations": TENSORBOARD})
    assert refused.value.param == "integrations.0.type"
    check_integrations({})
