"""The ring keeps order, shares no slot, overlaps its stages, reads ahead and loses no failure."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pytest

from headrace.engine.pipeline import Pipeline
from headrace.engine.visits import Visit, host_update_visit, update_visit

Slot = dict[str, int | None]

PATIENCE = 60  # seconds until what is awaited counts as lost


def _nothing(visit: Visit, slot: Slot) -> None:
    pass


def _nothing_computed(visit: Visit, slot: Slot | None) -> None:
    pass


@dataclass
class Stages:
    """Stages given as functions; a write is all that is left after the release."""

    reading: Callable[[Visit, Slot], None] = _nothing
    writing: Callable[[Visit, Slot], None] = _nothing
    slotless: set[int] = field(default_factory=set)

    def needs_slot(self, visit: Visit) -> bool:
        return visit.record not in self.slotless and not visit.on_host

    def read(self, visit: Visit, slot: Slot) -> None:
        self.reading(visit, slot)

    def release(self, visit: Visit, slot: Slot) -> Callable[[], None]:
        taken = dict(slot)
        slot["holds"] = None
        return lambda: self.writing(visit, taken)


def _slots(count: int) -> list[Slot]:
    return [{"holds": None} for _ in range(count)]


def _visits(records: Sequence[int]) -> list[Visit]:
    return [update_visit(record) for record in records]


def _no_threads_left() -> bool:
    return not [t for t in threading.enumerate() if t.name.startswith(("reader", "writer"))]


def test_visits_are_computed_in_order_each_with_its_own_bytes() -> None:
    computed: list[int] = []
    written: list[int | None] = []

    def read(visit: Visit, slot: Slot) -> None:
        assert slot["holds"] is None, "a slot was read into before it was released"
        slot["holds"] = visit.record

    def compute(visit: Visit, slot: Slot | None) -> None:
        assert slot is not None and slot["holds"] == visit.record
        computed.append(visit.record)

    def write(visit: Visit, slot: Slot) -> None:
        time.sleep(0.001)
        written.append(slot["holds"])

    with closing(Pipeline(_slots(3), Stages(read, write))) as pipeline:
        pipeline.run(_visits(range(20)), compute)
    assert computed == written == list(range(20))


def test_a_record_that_needs_no_slot_takes_none() -> None:
    """With one slot only, and a visit between that would need it."""
    seen: list[bool] = []
    with closing(Pipeline(_slots(1), Stages(slotless={1}))) as pipeline:
        pipeline.run(_visits([0, 1, 2]), lambda visit, slot: seen.append(slot is None))
    assert seen == [False, True, False]


@pytest.mark.parametrize("stage", ["read", "compute", "write"])
@pytest.mark.parametrize("num_slots", [1, 2, 3])
@pytest.mark.parametrize("failing", range(6))
def test_a_failure_in_any_stage_at_any_visit_is_raised(
    stage: str, num_slots: int, failing: int
) -> None:
    def stage_of(name: str) -> Callable[[Visit, Slot | None], None]:
        def run(visit: Visit, slot: Slot | None) -> None:
            if name == stage and visit.record == failing:
                raise OSError(f"{stage} {failing}")

        return run

    pipeline = Pipeline(_slots(num_slots), Stages(stage_of("read"), stage_of("write")))
    with pytest.raises(OSError, match=f"{stage} {failing}"):
        pipeline.run(_visits(range(6)), stage_of("compute"))
    assert _no_threads_left()


def test_a_record_is_read_only_after_its_last_write() -> None:
    """Visits 0 and 2 are of one record; its write is slow, and slots are plenty."""
    home = {"record": 0}
    seen: list[int | None] = []

    def read(visit: Visit, slot: Slot) -> None:
        slot["holds"] = home["record"]

    def write(visit: Visit, slot: Slot) -> None:
        if visit.record == 0:
            time.sleep(0.05)
            home["record"] += 1

    def compute(visit: Visit, slot: Slot | None) -> None:
        assert slot is not None
        seen.append(slot["holds"])

    with closing(Pipeline(_slots(3), Stages(read, write))) as pipeline:
        pipeline.run(_visits([0, 1, 0]), compute)
        pipeline.run(_visits([0]), compute)
    assert seen[0] == 0
    assert seen[2] == 1
    assert seen[3] == 2


def test_a_read_that_waits_for_a_write_ends_when_compute_fails() -> None:
    def compute(visit: Visit, slot: Slot | None) -> None:
        raise OSError("no more")

    pipeline = Pipeline(_slots(3), Stages())
    with pytest.raises(OSError, match="no more"):
        pipeline.run(_visits([0, 1, 0]), compute)
    assert _no_threads_left()


def test_a_held_record_stays_in_its_slot_while_others_pass() -> None:
    def read(visit: Visit, slot: Slot) -> None:
        if not visit.held:
            slot["holds"] = visit.record

    def compute(visit: Visit, slot: Slot | None) -> None:
        assert slot is not None and slot["holds"] == visit.record
        used.append(id(slot))

    class Keeping(Stages):
        def release(self, visit: Visit, slot: Slot) -> Callable[[], None]:
            return lambda: None

    used: list[int] = []
    visits = _visits([0, 1, 2, 3, 0])
    visits[0] = replace(visits[0], holds=True)
    visits[4] = replace(visits[4], held=True)
    with closing(Pipeline(_slots(2), Keeping(read))) as pipeline:
        pipeline.run(visits, compute)
        pipeline.run(visits, compute)
    assert used[0] == used[4] and used[5] == used[9]
    assert used[0] not in used[1:4]


def test_what_the_next_pass_begins_with_is_read_while_this_one_computes() -> None:
    reads: list[int] = []
    ahead = threading.Event()

    def read(visit: Visit, slot: Slot) -> None:
        reads.append(visit.record)
        if visit.record == 2:
            ahead.set()

    first, second = _visits([0]), _visits([1, 2, 3])
    with closing(Pipeline(_slots(2), Stages(read))) as pipeline:
        pipeline.run(first, _nothing_computed, ahead=second)
        assert ahead.wait(PATIENCE)
        time.sleep(0.05)  # time for a third, which must not come
        assert reads == [0, 1, 2], "as many as there are slots"
        pipeline.run(second, _nothing_computed)
        assert reads == [0, 1, 2, 3], "and none of them twice"


def test_what_was_read_ahead_is_read_again_when_another_pass_comes_between() -> None:
    home = {"state": 0}
    seen: list[int | None] = []

    def read(visit: Visit, slot: Slot) -> None:
        slot["holds"] = home["state"]

    def write(visit: Visit, slot: Slot) -> None:
        home["state"] += 1

    def compute(visit: Visit, slot: Slot | None) -> None:
        assert slot is not None
        seen.append(slot["holds"])

    with closing(Pipeline(_slots(2), Stages(read, write))) as pipeline:
        pipeline.run(_visits([0]), compute, ahead=_visits([1, 2]))
        pipeline.run(_visits([3]), compute)
        pipeline.run(_visits([1, 2]), compute)
    assert seen == [0, 1, 2, 2] or seen == [0, 1, 2, 3]


class AtOnce:
    """Stages that count how many of them are under way together, and meet before they go on: the
    read, the computation and the release of three visits in turn."""

    def __init__(self, meeting: Sequence[tuple[str, int]]) -> None:
        self._meeting = meeting
        self._together = threading.Barrier(max(1, len(meeting)), timeout=PATIENCE)
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def needs_slot(self, visit: Visit) -> bool:
        return True

    def read(self, visit: Visit, slot: Slot) -> None:
        self._stage("read", visit)

    def compute(self, visit: Visit, slot: Slot | None) -> None:
        self._stage("compute", visit)

    def release(self, visit: Visit, slot: Slot) -> Callable[[], None]:
        self._stage("release", visit)
        return lambda: None

    def _stage(self, name: str, visit: Visit) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        if (name, visit.record) in self._meeting:
            self._together.wait()
        with self._lock:
            self._now -= 1


def test_three_slots_overlap_what_one_slot_does_in_turn() -> None:
    overlapping = AtOnce([("release", 4), ("compute", 5), ("read", 6)])
    with closing(Pipeline(_slots(3), overlapping)) as pipeline:
        pipeline.run(_visits(range(10)), overlapping.compute)
    assert overlapping.most == 3
    in_turn = AtOnce([])
    with closing(Pipeline(_slots(1), in_turn)) as pipeline:
        pipeline.run(_visits(range(10)), in_turn.compute)
    assert in_turn.most == 1


def test_times_say_where_each_visit_spent_its_seconds() -> None:
    def slow_read(visit: Visit, slot: Slot) -> None:
        time.sleep(0.02)

    with closing(Pipeline(_slots(1), Stages(slow_read))) as pipeline:
        times = pipeline.run(_visits([0, 1]), lambda visit, slot: None)
    assert all(t.read >= 0.02 and t.stall_read >= 0.015 for t in times)
    assert all(t.compute < t.read for t in times)


def test_what_the_processor_updates_is_read_ahead_only_after_that_was_asked() -> None:
    """The next pass's visit of the record follows the visit that has it updated."""
    events: list[str] = []

    def read(visit: Visit, slot: Slot) -> None:
        events.append(f"read {visit.action}")

    def compute(visit: Visit, slot: Slot | None) -> None:
        time.sleep(0.01)
        events.append(f"compute {visit.action}")

    forward = Visit(record=2, action="forward", reads="weights", writes=False, phase="forward")
    with closing(Pipeline(_slots(2), Stages(read))) as pipeline:
        pipeline.run([host_update_visit(2)], compute, ahead=[forward])
        pipeline.run([forward], compute)
    assert events == ["compute update", "read forward", "compute forward"]


FORWARD = Visit(record=1, action="forward", reads="state", writes=True, phase="forward")


@pytest.mark.parametrize(
    "ahead",
    [
        [FORWARD, replace(FORWARD, reads="weights", writes=False)],
        [host_update_visit(1), replace(FORWARD, writes=False)],
        [replace(FORWARD, writes=False, holds=True), replace(FORWARD, writes=False, held=True)],
    ],
    ids=["written", "updated by the processor", "held"],
)
def test_what_was_read_ahead_can_be_dropped_whatever_its_pass_does(ahead: list[Visit]) -> None:
    """A record that comes twice would wait for a write of a pass that does not come, or have its
    slot given back twice."""
    slots = _slots(2)

    def read(visit: Visit, slot: Slot) -> None:
        assert visit in ahead or slot["holds"] is None, "a slot was given twice"
        slot["holds"] = visit.record

    def compute(visit: Visit, slot: Slot | None) -> None:
        time.sleep(0.01)  # in which the reader would read into what is in use

    with closing(Pipeline(slots, Stages(read))) as pipeline:
        pipeline.run(_visits([0]), compute, ahead=ahead)
        dropping = threading.Thread(target=pipeline.drop_ahead, daemon=True)
        dropping.start()
        dropping.join(PATIENCE)
        assert not dropping.is_alive()
        for slot in slots:
            slot["holds"] = None
        pipeline.run(_visits(range(2, 8)), compute)
