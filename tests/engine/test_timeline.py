"""A step played through is the step that the ring makes."""

import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from headrace.engine.pipeline import Pipeline
from headrace.engine.rates import VolumeRates, default_rates
from headrace.engine.timeline import Ring, Work, play
from headrace.engine.visits import Visit, update_visit

DRIVES = VolumeRates(read=1.0, write=1.0, mixed=1.0)
RATES = replace(default_rates("cpu"), h2d=1.0, d2h=1.0)


def seconds(work: list[Work], num_slots: int, reader_copies: bool = True) -> float:
    ring = Ring(num_slots=num_slots, reader_copies=reader_copies, num_staging=num_slots)
    return play(work, [None] * len(work), ring, drives=DRIVES, rates=RATES).end


def test_one_slot_is_the_sum_and_three_the_largest_with_fill_and_drain() -> None:
    work: list[Work] = [(3, 1, 4, 1, 0)] * 50
    assert seconds(work, 1) == pytest.approx(50 * 9)
    assert seconds(work, 3) == pytest.approx(4 + 50 * 4 + 1)


def test_a_drive_shares_its_time_between_the_directions() -> None:
    work: list[Work] = [(2, 0, 1, 0, 3)] * 100
    assert seconds(work, 3) == pytest.approx(100 * 5, rel=0.02)
    duplex = replace(DRIVES, mixed=2.0)
    ring = Ring(num_slots=3, reader_copies=True, num_staging=3)
    played = play(work, [None] * 100, ring, drives=duplex, rates=RATES)
    assert played.end == pytest.approx(100 * 3, rel=0.03)


def test_copies_beside_the_reads_hide_behind_them() -> None:
    work: list[Work] = [(2, 2, 1, 0, 0)] * 100
    assert seconds(work, 4, reader_copies=True) == pytest.approx(401)
    assert seconds(work, 4, reader_copies=False) == pytest.approx(203)


def test_a_visit_is_read_after_the_write_that_it_follows() -> None:
    work: list[Work] = [(1, 0, 1, 0, 5), (1, 0, 0, 0, 0)]
    ring = Ring(num_slots=2, reader_copies=True, num_staging=2)
    assert play(work, [None, 0], ring, drives=DRIVES, rates=RATES).end == pytest.approx(8)
    assert play(work, [None, None], ring, drives=DRIVES, rates=RATES).end == pytest.approx(7)


def ticked(work: list[Work], num_slots: int, reader_copies: bool) -> float:
    """The same ring, slower and simpler: every tick each stage does a tick's worth of its visit.

    The drive's tick goes to reads and writes in equal parts when both want it.
    """
    tick, eps = 0.02, 1e-6
    left = [list(one) for one in work]
    done = [0] * 5
    now = 0.0

    def ready(stage: int, i: int) -> bool:
        if stage == 0:
            return i - done[3] < num_slots and (not reader_copies or done[1] == i)
        return done[stage - 1] > i and not (stage == 3 and i - done[4] >= num_slots)

    while done[4] < len(work):
        for _ in range(5 * len(work)):  # what has nothing left to do is over
            for stage in range(5):
                i = done[stage]
                if i < len(work) and ready(stage, i) and left[i][stage] <= eps:
                    done[stage] += 1
        busy = [s for s in range(5) if done[s] < len(work) and ready(s, done[s])]
        for stage in busy:
            shared = stage in (0, 4) and {0, 4} <= set(busy)
            left[done[stage]][stage] -= tick / 2 if shared else tick
        now += tick
    return now


@pytest.mark.parametrize("seed", range(6))
def test_it_agrees_with_a_clock_that_ticks(seed: int) -> None:
    chance = random.Random(seed)
    work: list[Work] = [
        tuple(chance.choice([0, 0, 1, 2, 3]) for _ in range(5))  # type: ignore[misc]
        for _ in range(10)
    ]
    for num_slots in (1, 2, 3):
        for reader_copies in (True, False):
            exact = seconds(work, num_slots, reader_copies=reader_copies)
            assert ticked(work, num_slots, reader_copies) == pytest.approx(exact, abs=0.5)


def test_it_agrees_with_the_pipeline_itself() -> None:
    first, second = (20.0, 0.0, 10.0, 0.0, 15.0), (5.0, 0.0, 30.0, 0.0, 0.0)
    work = [first] * 8 + [second] * 6

    class Sleeping:
        def needs_slot(self, visit: Visit) -> bool:
            return True

        def read(self, visit: Visit, slot: int) -> None:
            time.sleep(work[visit.record][0] / 1000)

        def release(self, visit: Visit, slot: int) -> Callable[[], None]:
            return lambda: time.sleep(work[visit.record][4] / 1000)

    with closing(Pipeline([0, 1, 2], Sleeping())) as pipeline:
        started = time.perf_counter()
        pipeline.run(
            [update_visit(i) for i in range(len(work))],
            lambda visit, slot: time.sleep(work[visit.record][2] / 1000),
        )
        taken = time.perf_counter() - started
    duplex = replace(DRIVES, mixed=2.0)  # sleeps do not share a drive
    ring = Ring(num_slots=3, reader_copies=True, num_staging=3)
    planned = play(work, [None] * len(work), ring, drives=duplex, rates=RATES).end / 1000
    assert planned <= taken < 1.25 * planned
