"""The ring keeps order, shares no slot, overlaps its stages and loses no failure."""

import threading
import time

import pytest

from headrace.engine.pipeline import run_pass

Slot = dict[str, int | None]


def test_visits_are_computed_in_order_each_with_its_own_bytes() -> None:
    slots: list[Slot] = [{"holds": None} for _ in range(3)]
    computed: list[int] = []
    written: list[int] = []

    def read(visit: int, slot: Slot) -> None:
        assert slot["holds"] is None, "a slot was read into before its last write had finished"
        slot["holds"] = visit

    def compute(visit: int, slot: Slot) -> None:
        assert slot["holds"] == visit
        computed.append(visit)

    def write(visit: int, slot: Slot) -> None:
        time.sleep(0.001)
        written.append(visit)
        slot["holds"] = None

    run_pass(range(20), slots, read=read, compute=compute, write=write)
    assert computed == written == list(range(20))


@pytest.mark.parametrize("stage", ["read", "compute", "write"])
@pytest.mark.parametrize("num_slots", [1, 2, 3])
@pytest.mark.parametrize("failing", range(6))
def test_a_failure_in_any_stage_at_any_visit_is_raised(
    stage: str, num_slots: int, failing: int
) -> None:
    def stage_of(name: str) -> object:
        def run(visit: int, slot: int) -> None:
            if name == stage and visit == failing:
                raise OSError(f"{stage} {failing}")

        return run

    with pytest.raises(OSError, match=f"{stage} {failing}"):
        run_pass(
            range(6),
            list(range(num_slots)),
            read=stage_of("read"),  # type: ignore[arg-type]
            compute=stage_of("compute"),  # type: ignore[arg-type]
            write=stage_of("write"),  # type: ignore[arg-type]
        )
    assert not [t for t in threading.enumerate() if t.name.startswith(("reader", "writer"))]


def test_a_visit_is_read_only_after_the_write_that_it_follows() -> None:
    """Visits 0 and 2 are of one record; the write of 0 is slow, and slots are plenty."""
    home = {"record": 0}

    def read(visit: int, slot: Slot) -> None:
        slot["holds"] = home["record"]

    def write(visit: int, slot: Slot) -> None:
        if visit == 0:
            time.sleep(0.05)
            home["record"] = 1

    slots: list[Slot] = [{"holds": None} for _ in range(3)]
    run_pass(
        range(3),
        slots,
        read=read,
        compute=lambda visit, slot: None,
        write=write,
        follows=[None, None, 0],
    )
    assert slots[2]["holds"] == 1


def test_a_read_that_waits_for_a_write_ends_when_compute_fails() -> None:
    def compute(visit: int, slot: int) -> None:
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        run_pass(
            range(3),
            [0, 1, 2],
            read=lambda visit, slot: None,
            compute=compute,
            write=lambda visit, slot: None,
            follows=[None, None, 0],
        )


def _seconds(num_slots: int) -> float:
    def stage(visit: int, slot: int) -> None:
        time.sleep(0.01)

    started = time.perf_counter()
    run_pass(range(20), list(range(num_slots)), read=stage, compute=stage, write=stage)
    return time.perf_counter() - started


def test_three_slots_overlap_what_one_slot_does_in_turn() -> None:
    in_turn = _seconds(1)
    assert in_turn > 20 * 3 * 0.01
    assert _seconds(3) < 0.6 * in_turn


def test_times_say_where_each_visit_spent_its_seconds() -> None:
    def slow_read(visit: int, slot: int) -> None:
        time.sleep(0.02)

    def nothing(visit: int, slot: int) -> None:
        pass

    times = run_pass([0, 1], [0], read=slow_read, compute=nothing, write=nothing)
    assert all(t.read >= 0.02 and t.stall_read >= 0.015 and t.compute < 0.01 for t in times)
