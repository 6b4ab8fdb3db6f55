"""Times calls on a device, for calibration."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import mean, median
from time import perf_counter

import torch


def _nothing() -> None:
    """What is done between calls that follow each other at once."""


class Stopwatch:
    """Times calls on a device: after one that warms up, those there is time for, `least` at least.

    On a GPU the median of them counts. A processor is held up now and then, by whoever shares it,
    and a step is the sum of many calls, so there it is their `usual` one.
    """

    def __init__(self, device: torch.device, part_seconds: float, *, least: int = 3) -> None:
        self.device = device
        self.part_seconds = part_seconds
        self.least = least

    def seconds(
        self, call: Callable[[], object], *, between: Callable[[], None] = _nothing
    ) -> float:
        """Seconds of one call; what is done `between` calls does not count."""
        self.once(call)
        times: list[float] = []
        while not self.is_enough(times):
            between()
            times.append(self.once(call))
        return self.figure(times)

    def is_enough(self, times: Sequence[float]) -> bool:
        """Whether these are enough calls, and took the seconds of a figure, the longest of them
        left out: one that was held up shall not stand for all."""
        if len(times) < self.least:
            return False
        return sum(times) - max(times, default=0.0) >= self.part_seconds

    def figure(self, times: Sequence[float]) -> float:
        """The seconds of a call that these stand for."""
        return median(times) if self.device.type == "cuda" else usual(times)

    def once(self, call: Callable[[], object]) -> float:
        """Seconds of this one call."""
        self._wait()
        started = perf_counter()
        call()
        self._wait()
        return perf_counter() - started

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def usual(times: Sequence[float]) -> float:
    """Their mean; without the longest one where that took more than all others together and more
    than twice what they take.

    A call that was held up so says little of those that come. Shorter delays belong to a step,
    which is made of many calls: on two shared cores steps took 2 to 9 % more than the middle one.
    """
    *others, longest = sorted(times)
    alone = others and longest > max(sum(others), 2 * mean(others))
    return mean(others if alone else times)


def now() -> str:
    """This moment as rates are dated: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
