"""Which drive holds the others up, or fails: named, not averaged away. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_LEAST_BUSY_SECONDS = 2.0
_BUSIER = 1.5  # stripes are dealt so that all drives are busy for the same time
_SLOWER = 0.5  # of the rate that was calibrated


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveLoad:
    """What one drive did since the store was opened. `known_rate` is in bytes a second."""

    path: str
    moved_bytes: int
    busy_seconds: float
    known_rate: float | None
    num_failed: int
    last_error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveWarning:
    """What is wrong with one drive. `about` names drive and fault, `badness` grows with it: failed
    calls, or how many times too slow. `text` says it with the numbers of the moment."""

    about: str
    badness: float
    text: str


def warnings_of(loads: Sequence[DriveLoad]) -> list[DriveWarning]:
    """A warning for every drive that is slow or failing."""
    found: list[DriveWarning] = []

    def warn(load: DriveLoad, fault: str, badness: float, text: str) -> None:
        found.append(DriveWarning(about=f"{load.path}: {fault}", badness=badness, text=text))

    for i, load in enumerate(loads):
        others = [one.busy_seconds for one in loads[:i]] + [
            one.busy_seconds for one in loads[i + 1 :]
        ]
        if load.num_failed:
            warn(
                load, "fails", load.num_failed,
                f"volume {load.path}: {load.num_failed} calls failed, the last one so: "
                f"{load.last_error}",
            )  # fmt: skip
        if load.busy_seconds < _LEAST_BUSY_SECONDS:
            continue
        rate = load.moved_bytes / load.busy_seconds
        if others and load.busy_seconds > _BUSIER * median(others):
            warn(
                load, "holds others up", load.busy_seconds / max(median(others), 1e-9),
                f"volume {load.path} holds the others up: busy for {load.busy_seconds:.1f} s where "
                f"they are for {median(others):.1f} s, at {rate / 1e9:.2f} GB/s. Look at the "
                "drive, or calibrate the volumes and create the store again",
            )  # fmt: skip
        elif load.known_rate and rate < _SLOWER * load.known_rate:
            warn(
                load, "is slow", load.known_rate / max(rate, 1.0),
                f"volume {load.path} gives {rate / 1e9:.2f} GB/s while busy; it was calibrated at "
                f"{load.known_rate / 1e9:.2f}. Look at the drive and at what else uses it",
            )  # fmt: skip
    return found
