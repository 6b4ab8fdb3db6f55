"""A step played through: five stages, each in the order of the visits, over a ring of slots. Pure.

What the ring in `pipeline.py` does with threads is done here with a clock, so that the fill, the
drain and whatever waits for a slot come out in seconds. Two directions that are busy at once
share what the drive, or the link, can do for both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .rates import Rates, VolumeRates

Work = tuple[float, float, float, float, float]  # of one visit, by STAGES
STAGES = ("nvme_read", "h2d", "compute", "d2h", "nvme_write")
_READ, _UP, _COMPUTE, _DOWN, _WRITE = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """How visits go round. `reader_copies`: one thread reads a record and copies it up, and only
    then reads the next one; where it is false the copies go on beside the reads. A slot is free
    when its record has been copied down; `num_staging` records at most wait for their write."""

    num_slots: int
    reader_copies: bool
    num_staging: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """When each visit's compute ended, and when the last write had; seconds from the start."""

    compute_ends: list[float]
    end: float


def play(
    work: Sequence[Work],
    follows: Sequence[int | None],
    ring: Ring,
    *,
    drives: VolumeRates,
    rates: Rates,
) -> Played:
    """Play visits through the ring.

    `work[i]` is what visit i takes in each stage: bytes, but for compute, which is in seconds.
    Visit i is read only after the write of visit `follows[i]`.
    """
    clock = _Clock(work, follows, ring)
    half = drives.mixed_rate / 2
    alone, both = rates.link(busy=False), rates.link(busy=True)
    clock.start_all()
    while clock.done[_WRITE] < len(work):
        left = clock.left
        mixed = left[_READ] is not None and left[_WRITE] is not None
        up, down = both if left[_UP] is not None and left[_DOWN] is not None else alone
        read, write = (half, half) if mixed else (drives.read, drives.write)
        clock.advance((read, up, 1.0, down, write))
        clock.start_all()
    return Played(compute_ends=clock.ends, end=clock.now)


class _Clock:
    """Where each stage is: how many visits it has finished, and what is left of the one in hand."""

    def __init__(self, work: Sequence[Work], follows: Sequence[int | None], ring: Ring) -> None:
        self._work = work
        self._follows = follows
        self._ring = ring
        self.now = 0.0
        self.done = [0] * 5
        self.left: list[float | None] = [None] * 5
        self.ends = [0.0] * len(work)

    def start_all(self) -> None:
        """Start what can start; what has nothing to do is over at once and lets others start."""
        changed = True
        while changed:
            changed = False
            for stage in range(5):
                i = self.done[stage]
                if self.left[stage] is None and i < len(self._work) and self._may_start(stage, i):
                    self.left[stage] = self._work[i][stage]
                    if not self.left[stage]:
                        self._finish(stage)
                    changed = True

    def advance(self, speeds: Sequence[float]) -> None:
        """Go on until the next stage has finished its visit."""
        busy = [(stage, rest / speeds[stage]) for stage, rest in enumerate(self.left) if rest]
        span = min(seconds for _, seconds in busy)
        self.now += span
        for stage, seconds in busy:
            if seconds <= span * (1 + 1e-9):
                self._finish(stage)
            else:
                self.left[stage] = (seconds - span) * speeds[stage]

    def _may_start(self, stage: int, i: int) -> bool:
        done = self.done
        if stage == _READ:
            earlier = self._follows[i]
            return (
                i - done[_DOWN] < self._ring.num_slots
                and (earlier is None or earlier < done[_WRITE])
                and (not self._ring.reader_copies or done[_UP] == i)
            )
        waits = stage == _DOWN and i - done[_WRITE] >= self._ring.num_staging
        return done[stage - 1] > i and not waits

    def _finish(self, stage: int) -> None:
        if stage == _COMPUTE:
            self.ends[self.done[stage]] = self.now
        self.done[stage] += 1
        self.left[stage] = None
