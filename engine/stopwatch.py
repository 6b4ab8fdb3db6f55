"""Times calls on a device, for calibration."""

from collections.abc import Callable
from datetime import UTC, datetime
from statistics import median
from time import perf_counter

import torch


class Stopwatch:
    """Times calls on a device: after one that warms up, the median of those there is time for."""

    def __init__(self, device: torch.device, part_seconds: float) -> None:
        self.device = device
        self._part_seconds = part_seconds

    def seconds(self, call: Callable[[], object]) -> float:
        """Seconds of one call, at least three of which are made."""
        self._once(call)
        times: list[float] = []
        while len(times) < 3 or sum(times) < self._part_seconds:
            times.append(self._once(call))
        return median(times)

    def _once(self, call: Callable[[], object]) -> float:
        self._wait()
        started = perf_counter()
        call()
        self._wait()
        return perf_counter() - started

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def now() -> str:
    """This moment as rates are dated: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
