"""What is known of a volume's speed: measured once, kept beside its stores, with the date."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .atomic_file import replace_file
from .config import VolumeConfig
from .figures import UNFIT, check_figures
from .held_up import busy_words

FILE_NAME = ".headrace-calibration.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Rates of one volume in bytes a second, by the road and in the calls that the store uses.

    `mixed` counts reads and writes together, half of each. `first_write` is into reserved space
    that was never written. `full` went past the drive's write cache. `held_up`: the share of the
    time that other work held the process up. `drift`: what a run since has found of these figures.
    """

    measured_at: str  # ISO 8601, UTC
    active: str
    filesystem: str
    full: bool
    read_bytes_per_second: float
    write_bytes_per_second: float
    mixed_bytes_per_second: float
    first_write_bytes_per_second: float
    written_bytes: int  # the wear that measuring has cost
    seconds: float
    held_up: float = 0.0
    drift: str = ""

    @property
    def doubt(self) -> str:
        """Why they should be measured again, in words; empty: they need not be."""
        return self.drift or busy_words(self.held_up)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        return asdict(self)


def read_calibration(path: Path) -> Calibration | None:
    """The figures kept on the volume `path`; None when there are none that can be read."""
    try:
        found = Calibration(**json.loads((path / FILE_NAME).read_bytes()))
        check_figures(found)
    except (OSError, *UNFIT):
        return None
    return found


def known_rate(config: VolumeConfig) -> float | None:
    """Bytes a second of reads and writes together: as calibrated, within the throttle if any."""
    calibration = read_calibration(config.path)
    rates = [
        rate
        for rate in (
            calibration and calibration.mixed_bytes_per_second,
            config.throttle_bytes_per_second,
        )
        if rate
    ]
    return min(rates, default=None)


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Keep the figures on the volume `path`, in place of older ones. OSError leaves those."""
    text = json.dumps(calibration.to_dict(), indent=1) + "\n"
    replace_file(path / FILE_NAME, text.encode())
