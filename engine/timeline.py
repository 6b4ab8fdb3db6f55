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
class Turn:
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


def play(turns: Sequence[Turn], ring: Ring, *, drives: VolumeRates, rates: Rates) -> Played:
    """Play visits through the ring."""
    clock = _Clock(turns, ring)
    half = drives.mixed_rate / 2
    alone, both = rates.link(busy=False), rates.link(busy=True)
    clock.start_all()
    while clock.done[_WRITE] < len(turns):
        left = clock.left
        mixed = left[_READ] is not None and left[_WRITE] is not None
        up, down = both if left[_UP] is not None and left[_DOWN] is not None else alone
        read, write = (half, half) if mixed else (drives.read, drives.write)
        clock.advance((read, up, 1.0, down, write))
        clock.start_all()
    return Played(compute_ends=clock.ends[_COMPUTE], write_ends=clock.ends[_WRITE])


class _Clock:
    """Where each stage is: how many visits it has finished, and what is left of the one in hand."""

    def __init__(self, turns: Sequence[Turn], ring: Ring) -> None:
        self._turns = turns
        self._ring = ring
        self._slots_taken = 0
        self._staging_taken = 0
        self.now = 0.0
        self.done = [0] * 5
        self.left: list[float | None] = [None] * 5
        self.ends = [[0.0] * len(turns) for _ in STAGES]

    def start_all(self) -> None:
        """Start what can start; what has nothing to do is over at once and lets others start."""
        changed = True
        while changed:
            changed = False
            for stage in range(5):
                i = self.done[stage]
                if self.left[stage] is None and i < len(self._turns) and self._may_start(stage, i):
                    self._start(stage, self._turns[i])
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
        done, turn = self.done, self._turns[i]
        if stage == _READ:
            return self._may_read(i)
        if done[stage - 1] <= i:
            return False
        if stage == _COMPUTE:
            return self._has_passed(turn.after)
        return stage != _DOWN or not _stages_out(turn) or self._has_staging()

    def _may_read(self, i: int) -> bool:
        done, turn = self.done, self._turns[i]
        if self._ring.reader_copies and done[_UP] != i:
            return False
        if turn.takes_slot and self._slots_taken >= self._ring.num_slots:
            return False
        if turn.follows is not None and turn.follows >= done[_WRITE]:
            return False
        if not turn.ahead and not self._has_passed(turn.after):
            return False
        return not _stages_in(turn) or self._has_staging()

    def _has_passed(self, after: tuple[int, int]) -> bool:
        computed, written = after
        return self.done[_COMPUTE] >= computed and self.done[_WRITE] >= written

    def _has_staging(self) -> bool:
        return self._staging_taken < self._ring.num_staging

    def _start(self, stage: int, turn: Turn) -> None:
        if stage == _READ:
            self._slots_taken += turn.takes_slot
        if (stage == _READ and _stages_in(turn)) or (stage == _DOWN and _stages_out(turn)):
            self._staging_taken += 1
        self.left[stage] = turn.work[stage]
        if not self.left[stage]:
            self._finish(stage)

    def _finish(self, stage: int) -> None:
        turn = self._turns[self.done[stage]]
        if stage == _DOWN:
            self._slots_taken -= turn.frees_slot
        if (stage == _UP and _stages_in(turn)) or (stage == _WRITE and _stages_out(turn)):
            self._staging_taken -= 1
        self.ends[stage][self.done[stage]] = self.now
        self.done[stage] += 1
        self.left[stage] = None


def _stages_in(turn: Turn) -> bool:
    return turn.stages_in and turn.work[_READ] > 0


def _stages_out(turn: Turn) -> bool:
    return turn.stages_out and turn.work[_WRITE] > 0
