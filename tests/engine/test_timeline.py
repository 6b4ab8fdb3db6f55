"""A step played through is the step that the ring makes."""

import random
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from headrace.engine.pipeline import Pipeline
from headrace.engine.rates import VolumeRates, default_rates
from headrace.engine.timeline import Ring, Turn, Work, play
from headrace.engine.visits import Visit, update_visit

DRIVES = VolumeRates(read=1.0, write=1.0, mixed=1.0)
RATES = replace(default_rates("cpu"), h2d=1.0, d2h=1.0)


def seconds(work: list[Work], num_slots: int, reader_copies: bool = True) -> float:
    ring = Ring(num_slots=num_slots, reader_copies=reader_copies, num_staging=num_slots)
    return play(turns(work), ring, drives=DRIVES, rates=RATES).end


def turns(work: list[Work]) -> list[Turn]:
    return [Turn(work=one) for one in work]


def test_one_slot_is_the_sum_and_three_the_largest_with_fill_and_drain() -> None:
    work: list[Work] = [(3, 1, 4, 1, 0)] * 50
    assert seconds(work, 1) == pytest.approx(50 * 9)
    assert seconds(work, 3) == pytest.approx(4 + 50 * 4 + 1)


def test_a_drive_shares_its_time_between_the_directions() -> None:
    work: list[Work] = [(2, 0, 1, 0, 3)] * 100
    assert seconds(work, 3) == pytest.approx(100 * 5, rel=0.02)
    duplex = replace(DRIVES, mixed=2.0)
    ring = Ring(num_slots=3, reader_copies=True, num_staging=3)
    played = play(turns(work), ring, drives=duplex, rates=RATES)
    assert played.end == pytest.approx(100 * 3, rel=0.03)


def test_copies_beside_the_reads_hide_behind_them() -> None:
    work: list[Work] = [(2, 2, 1, 0, 0)] * 100
    assert seconds(work, 4, reader_copies=True) == pytest.approx(401)
    assert seconds(work, 4, reader_copies=False) == pytest.approx(203)


def test_a_visit_is_read_after_the_write_that_it_follows() -> None:
    first, second = (1, 0, 1, 0, 5), (1, 0, 0, 0, 0)
    ring = Ring(num_slots=2, reader_copies=True, num_staging=2)
    follows = [Turn(work=first), Turn(work=second, follows=0)]
    assert play(follows, ring, drives=DRIVES, rates=RATES).end == pytest.approx(8)
    assert play(turns([first, second]), ring, drives=DRIVES, rates=RATES).end == pytest.approx(7)


def test_a_visit_without_a_slot_does_not_keep_the_reader_from_the_next_one() -> None:
    """While records on the device are computed on, what comes after them is read."""
    streamed, resident = (4, 0, 1, 0, 0), (0, 0, 3, 0, 0)
    ring = Ring(num_slots=2, reader_copies=True, num_staging=2)
    here = Turn(work=resident, takes_slot=False, frees_slot=False)
    visits = [Turn(work=streamed), here, here, here, Turn(work=streamed)]
    assert play(visits, ring, drives=DRIVES, rates=RATES).end == pytest.approx(4 + 1 + 9 + 1)


def test_a_held_record_keeps_its_slot_until_it_is_let_go() -> None:
    work = (2, 0, 1, 0, 0)
    ring = Ring(num_slots=2, reader_copies=True, num_staging=2)
    plain = [Turn(work=work) for _ in range(3)]
    held = [
        Turn(work=work, frees_slot=False), Turn(work=work),
        Turn(work=(0, 0, 1, 0, 0), takes_slot=False), Turn(work=work),
    ]  # fmt: skip
    assert play(plain, ring, drives=DRIVES, rates=RATES).end == pytest.approx(7)
    # The third read has but the slot of the second visit, and waits until that is computed.
    assert play(held, ring, drives=DRIVES, rates=RATES).end == pytest.approx(8)


def test_one_place_in_staging_is_for_the_way_in_or_the_way_out() -> None:
    work: list[Work] = [(2, 0, 3, 0, 2)] * 50
    duplex = replace(DRIVES, mixed=2.0)
    taken = [
        play(
            turns(work),
            Ring(num_slots=3, reader_copies=True, num_staging=places),
            drives=duplex,
            rates=RATES,
        ).end
        for places in (1, 2)
    ]
    assert taken[0] == pytest.approx(4 * 50, rel=0.03)  # read and write in turn
    assert taken[1] == pytest.approx(3 * 50, rel=0.03)


def test_what_is_read_ahead_is_there_when_its_step_begins() -> None:
    work = (2, 0, 4, 0, 0)
    ring = Ring(num_slots=2, reader_copies=True, num_staging=2)
    first = [Turn(work=work)] * 2
    for ahead, end in ((0, 20), (1, 18), (2, 18)):
        later = [Turn(work=work, after=(2, 2), ahead=i < ahead) for i in range(2)]
        played = play([*first, *later], ring, drives=DRIVES, rates=RATES)
        assert played.end == pytest.approx(end), ahead


def ticked(work: list[Work], num_slots: int, reader_copies: bool) -> float:
    """The same ring, slower and simpler: every tick each stage does a tick's worth of its visit.

    The drive's tick goes to reads and writes in equal parts when both want it.
    """
    tick, eps = 0.02, 1e-6
    left = [list(one) for one in work]
    done = [0] * 5
    now = 0.0

    started: set[tuple[int, int]] = set()

    def has_staging() -> bool:
        """A place is taken from a read's start to the copy's end, and back to the write's end."""
        ways_in = sum((0, i) in started and done[1] <= i and one[0] > 0
                      for i, one in enumerate(work))  # fmt: skip
        ways_out = sum((3, i) in started and done[4] <= i and one[4] > 0
                       for i, one in enumerate(work))  # fmt: skip
        return ways_in + ways_out < num_slots

    def ready(stage: int, i: int) -> bool:
        if (stage, i) in started:
            return True
        if stage == 0:
            if i - done[3] >= num_slots or (reader_copies and done[1] != i):
                return False
            may = not work[i][0] or has_staging()
        else:
            may = done[stage - 1] > i and (stage != 3 or not work[i][4] or has_staging())
        if may:
            started.add((stage, i))
        return may

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


class Sleeping:
    """Stages that sleep for the milliseconds of `work`, and note how long each of them took."""

    def __init__(self, work: list[Work]) -> None:
        self._work = work
        self.took = [[0.0] * 5 for _ in work]

    def needs_slot(self, visit: Visit) -> bool:
        return True

    def read(self, visit: Visit, slot: int) -> None:
        self._sleep(visit, 0)

    def compute(self, visit: Visit, slot: int | None) -> None:
        self._sleep(visit, 2)

    def release(self, visit: Visit, slot: int) -> Callable[[], None]:
        return lambda: self._sleep(visit, 4)

    def _sleep(self, visit: Visit, stage: int) -> None:
        started = time.perf_counter()
        time.sleep(self._work[visit.record][stage] / 1000)
        self.took[visit.record][stage] = time.perf_counter() - started


def test_it_agrees_with_the_pipeline_itself() -> None:
    """What is played takes what each stage took: a busy box lengthens both."""
    first, second = (20.0, 0.0, 10.0, 0.0, 15.0), (5.0, 0.0, 30.0, 0.0, 0.0)
    work = [first] * 8 + [second] * 6
    duplex = replace(DRIVES, mixed=2.0)  # sleeps do not share a drive
    ring = Ring(num_slots=3, reader_copies=True, num_staging=3)
    ratios = []
    for _ in range(12):  # on a busy box threads are woken late, and then between two stages
        stages = Sleeping(work)
        with closing(Pipeline([0, 1, 2], stages)) as pipeline:
            started = time.perf_counter()
            pipeline.run([update_visit(i) for i in range(len(work))], stages.compute)
            taken = time.perf_counter() - started
        done: list[Work] = [tuple(one) for one in stages.took]  # type: ignore[misc]
        ratios.append(taken / play(turns(done), ring, drives=duplex, rates=RATES).end)
        if ratios[-1] < 1.25:
            break
    assert min(ratios) < 1.25 and min(ratios) >= 0.99, ratios
