"""Bounds at which a run pauses: hours of training, space that stays free.

Asked between steps, and between the records of an import.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.engine import RunEvent, StopReason

from .event_log import EventReader

SECONDS_PER_HOUR = 3600


class RunLimits:
    """The limits of one run, from a create body's `limits`; the ones in bytes are the store's.

    Hours count the steps in the job's log so far and the time since this was made. `places` are
    directories on the drives where space must stay free.
    """

    def __init__(
        self,
        limits: Mapping[str, Any] | None,
        *,
        log: Path,
        places: Sequence[Path],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = limits or {}
        self._max_hours: float | None = limits.get("max_hours")
        self._min_free: int | None = limits.get("min_free_disk")
        self._places = places
        self._clock = clock
        self._started = clock()
        self._seconds_before = step_seconds(log) if self._max_hours else 0.0

    def check(self, emit: Callable[[RunEvent], object]) -> StopReason | None:
        """Whether the run has to pause here; then it is told why."""
        reason = self.reached()
        if reason is None:
            return None
        emit(RunEvent(type="message", level="warn", message=reason, data={"paused_by": "limits"}))
        return "pause"

    def reached(self) -> str | None:
        """The limit that is reached, in a sentence with the numbers; None for none."""
        spent = (self._seconds_before + self._clock() - self._started) / SECONDS_PER_HOUR
        if self._max_hours is not None and spent >= self._max_hours:
            return (
                f"pausing: the job has trained for {spent:.2f} hours, and limits.max_hours is "
                f"{self._max_hours:g}; resume it with a larger limit"
            )
        for place in self._places if self._min_free is not None else ():
            free = shutil.disk_usage(place).free
            if self._min_free is not None and free < self._min_free:
                return (
                    f"pausing: {free} bytes are free in {place}, and limits.min_free_disk is "
                    f"{self._min_free}; free some space, or resume with a lower limit"
                )
        return None


def step_seconds(log: Path) -> float:
    """How long the steps in a job's log took, those that were done again included."""
    reader = EventReader(log)
    total = 0.0
    while events := reader.read():
        total += sum(e.data.get("step_seconds", 0.0) for e in events if e.type == "metrics")
    return total
