"""A step played through: five stages, each in the order of the visits, over a ring of slots. Pure.

What the ring in `pipeline.py` does with threads is done here with a clock, so that the fill, the
drain and whatever waits for a slot come out in seconds. Two directions that are busy at once
share what the drive, or the link, can do for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from .rates import Rates, VolumeRates

Work = tuple[float, float, float, float, float]  # of one visit, by STAGES
STAGES = ("nvme_read", "h2d", "compute", "d2h", "nvme_write")
_EACH = range(5)
_READ, _UP, _COMPUTE, _DOWN, _WRITE = _EACH
_LOOK_EVERY = 8  # ends of stages: to see whether a deadline is missed


class Turn(NamedTuple):
    """One visit on its way round: what it takes in each stage, and what it waits for.

    `work` is in bytes, but for compute, which is in seconds. It is read after the write of visit
    `follows`. `takes_slot`: it needs a slot of its own; `frees_slot`: one is free when it has been
    copied down. `stages_in`, `stages_out`: what it reads from the drive, or writes there, passes
    through staging. It is computed when so many of the first visits as `after` says have been
    computed, and so many written; it is read then, too, unless it is read `ahead`.
    """

    work: Work
    follows: int | None = None
    takes_slot: bool = True
    frees_slot: bool = True
    stages_in: bool = True
    stages_out: bool = True
    after: tuple[int, int] = (0, 0)
    ahead: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """How visits go round. `reader_copies`: one thread reads a record and copies it up, and only
    then reads the next one; where it is false the copies go on beside the reads. A slot is free
    when its record has been copied down; records on their way from or to the drive take one of
    `num_staging` places in between."""

    num_slots: int
    reader_copies: bool
    num_staging: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """When each visit's compute ended, and its write; seconds from the start."""

    compute_ends: list[float]
    write_ends: list[float]

    @property
    def end(self) -> float:
        """When the last write had ended."""
        return self.write_ends[-1]


def play(
    turns: Sequence[Turn],
    ring: Ring,
    *,
    drives: VolumeRates,
    rates: Rates,
    until: tuple[int, int] | None = None,
    limit: float = inf,
) -> Played:
    """Play visits through the ring, `until` so many of the first ones have been computed and so
    many written; all of them, where that is not given.

    Whatever has not ended by then never ends, which is inf. Gives up as soon as it is sure that
    this takes more than `limit` seconds from when what the last of them waits for is over.
    """
    computed, written = until or (len(turns), len(turns))
    clock = _Clock(turns, ring)
    deadline = _Deadline(turns, (computed, written), limit, drives, rates)
    half = drives.mixed_rate / 2
    alone, both = rates.link(busy=False), rates.link(busy=True)
    done, left = clock.done, clock.left
    clock.start_all()
    events = 0
    while done[_COMPUTE] < computed or done[_WRITE] < written:
        if limit < inf and events % _LOOK_EVERY == 0 and deadline.is_missed(clock):
            break
        events += 1
        up, down = both if left[_UP] and left[_DOWN] else alone
        mixed = left[_READ] and left[_WRITE]
        read, write = (half, half) if mixed else (drives.read, drives.write)
        clock.advance((read, up, 1.0, down, write))
        clock.start_all()
    return Played(compute_ends=clock.ends[_COMPUTE], write_ends=clock.ends[_WRITE])


class _Clock:
    """Where each stage is: how many visits it has finished, and what is left of the one in hand, 0
    where it is idle. Plain numbers in lists, since many steps are played for a plan."""

    def __init__(self, turns: Sequence[Turn], ring: Ring) -> None:
        num = len(turns)
        self.now = 0.0
        self.done = [0, 0, 0, 0, 0, num]  # before the first stage, at -1, all are done
        self.left = [0.0] * 5
        self.ends = [[inf] * num for _ in STAGES]
        self._ring = ring
        self._free, self._staged = ring.num_slots, 0
        works, follows, takes, frees, ins, outs, after, ahead = zip(*turns, strict=True)
        self._work: tuple[Sequence[float], ...] = tuple(zip(*works, strict=True))
        self._follows: Sequence[int | None] = follows
        self._takes: Sequence[bool] = takes
        self._frees: Sequence[bool] = frees
        self._after: Sequence[tuple[int, int]] = after
        self._ahead: Sequence[bool] = ahead
        none, read, written = (False,) * num, self._work[_READ], self._work[_WRITE]
        into = tuple(staged and size > 0 for staged, size in zip(ins, read, strict=True))
        out = tuple(staged and size > 0 for staged, size in zip(outs, written, strict=True))
        self._enters, self._leaves = (into, none, none, out, none), (none, into, none, none, out)

    def start_all(self) -> None:
        """Start what can start; what has nothing to do is over at once and lets others start."""
        done, left, places = self.done, self.left, self._ring.num_staging
        changed = True
        while changed:
            changed = False
            for stage in _EACH:
                i = done[stage]
                if left[stage] or i >= done[stage - 1]:
                    continue
                enters = self._enters[stage][i]
                if enters and self._staged >= places:
                    continue
                if stage == _READ:
                    if not self._may_read(i):
                        continue
                    self._free -= self._takes[i]
                elif stage == _COMPUTE and not self._has_passed(i):
                    continue
                self._staged += enters
                left[stage] = self._work[stage][i]
                if not left[stage]:
                    self._finish(stage)
                changed = True

    def advance(self, speeds: Sequence[float]) -> None:
        """Go on until the next stage has finished its visit."""
        left = self.left
        busy = [(stage, left[stage] / speeds[stage]) for stage in _EACH if left[stage]]
        span = min([seconds for _, seconds in busy])
        self.now += span
        for stage, seconds in busy:
            if seconds <= span * (1 + 1e-9):
                self._finish(stage)
            else:
                left[stage] = (seconds - span) * speeds[stage]

    def _may_read(self, i: int) -> bool:
        if self._takes[i] and self._free <= 0:
            return False
        if self._ring.reader_copies and self.done[_UP] != i:
            return False
        follows = self._follows[i]
        if follows is not None and follows >= self.done[_WRITE]:
            return False
        return self._ahead[i] or self._has_passed(i)

    def _has_passed(self, i: int) -> bool:
        computed, written = self._after[i]
        return self.done[_COMPUTE] >= computed and self.done[_WRITE] >= written

    def _finish(self, stage: int) -> None:
        i = self.done[stage]
        self.ends[stage][i] = self.now
        self.done[stage] = i + 1
        self.left[stage] = 0.0
        if self._leaves[stage][i]:
            self._staged -= 1
        if stage == _DOWN:
            self._free += self._frees[i]


class _Deadline:
    """Whether visits that are not yet through can be so in time, were nothing in each other's way.

    Of those that are to be computed what is left is read, copied up and computed; of those that are
    to be written it is written. What is in hand counts as nothing.
    """

    def __init__(
        self,
        turns: Sequence[Turn],
        until: tuple[int, int],
        limit: float,
        drives: VolumeRates,
        rates: Rates,
    ) -> None:
        if limit == inf:
            return
        computed, written = until
        # The drive may be faster in both directions at once than in each in turn.
        share = min(1.0, drives.seconds(1.0, 1.0) / (1 / drives.read + 1 / drives.write))
        self._limit = limit
        self._after = turns[computed - 1].after
        self._latest: float | None = None
        self._left = tuple(
            _sums_from([turn.work[stage] for turn in turns[:count]], speed)
            for stage, count, speed in (
                (_READ, computed, drives.read / share), (_UP, computed, rates.h2d),
                (_COMPUTE, computed, 1.0), (_WRITE, written, drives.write / share),
            )
        )  # fmt: skip

    def is_missed(self, clock: "_Clock") -> bool:
        """Whether it is too late by now for what is left."""
        done = clock.done
        if self._latest is None:
            if done[_COMPUTE] < self._after[0] or done[_WRITE] < self._after[1]:
                return False
            begun = max(
                self._ended(clock, _COMPUTE, self._after[0]),
                self._ended(clock, _WRITE, self._after[1]),
            )
            self._latest = begun + self._limit
        reads, ups, computes, writes = self._left
        in_hand = len(reads) - 1
        drive = reads[min(done[_READ], in_hand)] + writes[min(done[_WRITE], len(writes) - 1)]
        up, compute = ups[min(done[_UP], in_hand)], computes[min(done[_COMPUTE], in_hand)]
        return clock.now + max(drive, up, compute) > self._latest

    def _ended(self, clock: "_Clock", stage: int, count: int) -> float:
        return clock.ends[stage][count - 1] if count else 0.0


def _sums_from(amounts: Sequence[float], speed: float) -> list[float]:
    """Seconds of all amounts behind each one, which is taken to be in hand; 0 for the last."""
    sums = [0.0]
    for amount in reversed(amounts[1:]):
        sums.append(sums[-1] + amount / speed)
    return sums[::-1]
