"""The threads of a volume: order, throttle, counting, and an end for every call."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from headrace.storage import StoreError
from headrace.storage.io_queue import Call, IoQueue, Kind
from headrace.storage.stats import LinkMeter, LinkStats
from headrace.storage.throttle import Throttle

PATIENCE = 60  # seconds until what is awaited counts as lost


def _queue(num_threads: int = 1, throttle: Throttle | None = None) -> IoQueue:
    meters = {link: LinkMeter() for link in ("nvme_read", "nvme_write")}
    return IoQueue("drive", num_threads=num_threads, meters=meters, throttle=throttle)


@pytest.fixture
def queue() -> Iterator[IoQueue]:
    queue = _queue()
    yield queue
    queue.close(5)


def _nothing() -> None:
    pass


class _Gate:
    """Work that stays inside until it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self.entered = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def __call__(self) -> None:
        self.entered.set()
        self._opened.wait(PATIENCE)


class _End:
    """Hears how a call ended."""

    def __init__(self) -> None:
        self._heard = threading.Event()
        self.errors: list[BaseException | None] = []

    def __call__(self, error: BaseException | None) -> None:
        self.errors.append(error)
        self._heard.set()

    def wait(self) -> None:
        assert self._heard.wait(PATIENCE)


def _call(kind: Kind, work: Callable[[], None], ended: _End) -> Call:
    return Call(kind=kind, work=work, ended=ended, num_bytes=4096, payload_bytes=1000)


def test_reads_come_before_writes_and_writes_before_scrubbing(queue: IoQueue) -> None:
    gate, order = _Gate(), list[str]()
    queue.run("sync", gate)
    kinds: list[Kind] = ["scrub", "write", "read", "write", "read"]
    outcomes = [
        queue.run(kind, partial(order.append, f"{kind} {i}")) for i, kind in enumerate(kinds)
    ]
    gate.open()
    for outcome in outcomes:
        outcome.result(PATIENCE)
    assert order == ["read 2", "read 4", "write 1", "write 3", "scrub 0"]


def test_a_failed_call_is_heard_of_and_moves_nothing(queue: IoQueue) -> None:
    def fail() -> None:
        raise ValueError("broken")

    end = _End()
    queue.submit(_call("read", fail, end))
    end.wait()
    assert isinstance(end.errors[0], ValueError)
    assert queue.meters["nvme_read"].snapshot().payload_bytes == 0
    assert queue.run("read", _nothing).exception(5) is None


def test_payload_and_padding_are_counted_apart(queue: IoQueue) -> None:
    end = _End()
    start = time.monotonic()
    queue.submit(_call("write", lambda: time.sleep(0.02), end))
    end.wait()
    queue.close(5)
    seconds = time.monotonic() - start
    counted = queue.meters["nvme_write"].snapshot()
    assert (counted.payload_bytes, counted.padding_bytes, counted.operations) == (1000, 3096, 1)
    assert 0.02 <= counted.busy_seconds <= seconds


def test_busy_time_does_not_count_parallel_calls_twice() -> None:
    queue = _queue(num_threads=4)
    start = time.monotonic()
    outcomes = [queue.run("read", lambda: time.sleep(0.05)) for _ in range(4)]
    for outcome in outcomes:
        outcome.result(PATIENCE)
    queue.close(5)
    assert queue.meters["nvme_read"].snapshot().busy_seconds <= time.monotonic() - start


def test_closing_ends_what_waits_and_lets_finish_what_runs() -> None:
    queue = _queue()
    gate = _Gate()
    running = queue.run("read", gate)
    assert gate.entered.wait(PATIENCE)
    waiting = queue.run("read", _nothing)
    threading.Timer(0.05, gate.open).start()
    assert queue.close(5)
    assert running.exception(0) is None
    assert isinstance(waiting.exception(0), StoreError)
    assert isinstance(queue.run("read", _nothing).exception(0), StoreError)


def test_a_call_that_hangs_is_seen() -> None:
    queue = _queue()
    gate = _Gate()
    hanging = queue.run("read", gate)
    time.sleep(0.05)
    assert queue.hung_seconds() >= 0.04
    assert not queue.close(0.05)
    gate.open()
    hanging.result(PATIENCE)
    assert queue.close(5)
    assert queue.hung_seconds() == 0


def test_a_throttle_holds_reads_and_writes_together_to_its_rate() -> None:
    booked: list[int] = []

    class Heard(Throttle):
        def book(self, num_bytes: int) -> float:
            booked.append(num_bytes)
            return super().book(num_bytes)

    queue = _queue(num_threads=4, throttle=Heard(40_000_000))
    start = time.monotonic()
    outcomes = [
        queue.run(kind, _nothing, 1_000_000) for _ in range(4) for kind in ("read", "write")
    ]
    for outcome in outcomes:
        outcome.result(PATIENCE)
    seconds = time.monotonic() - start
    queue.close(5)
    assert seconds >= 0.2 and booked == [1_000_000] * 8
    assert queue.hung_seconds() == 0


def test_a_throttle_saves_nothing_up() -> None:
    throttle = Throttle(1_000_000)
    throttle.book(1000)
    time.sleep(0.05)
    start = time.monotonic()
    assert throttle.book(100_000) >= start + 0.1
    with pytest.raises(ValueError, match="moves nothing"):
        Throttle(0)


def test_stats_of_a_step_are_a_difference() -> None:
    before = LinkStats(payload_bytes=10, padding_bytes=1, operations=2, busy_seconds=0.5)
    after = LinkStats(payload_bytes=30, padding_bytes=1, operations=5, busy_seconds=2.0)
    assert after - before == LinkStats(payload_bytes=20, operations=3, busy_seconds=1.5)
