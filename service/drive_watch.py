"""What is known of each volume's drive beside the probe: its health, its calibrated speed."""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.storage import drive_health, read_calibration

GONE = "is not there any more: is its drive mounted?"  # of a volume
LOOK_SECONDS = 60.0  # asking a drive starts a process


class DriveWatch:
    """Asks the drives for their health now and then, so that whoever wants it need not wait."""

    def __init__(self, volumes: Sequence[Mapping[str, Any]]) -> None:
        """`volumes` are the probe's findings, each with its `path`."""
        self._volumes = volumes
        self._health: dict[str, dict[str, Any]] = {}

    async def run(self) -> None:
        """Ask, wait, ask again, until cancelled."""
        while True:
            for volume in self._volumes:
                path = volume["path"]
                self._health[path] = asdict(await asyncio.to_thread(drive_health, Path(path)))
            await asyncio.sleep(LOOK_SECONDS)

    def missing(self) -> list[str]:
        """Paths of the volumes that were there at the start and are not now."""
        return [volume["path"] for volume in self._volumes if not Path(volume["path"]).is_dir()]

    def status(self, traffic: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Each volume, JSON-ready; None for what is not known.

        `traffic` maps paths to what the running job moves there now, in bytes a second.
        """
        return [self._volume(volume, traffic.get(volume["path"])) for volume in self._volumes]

    def _volume(self, volume: Mapping[str, Any], traffic: Any) -> dict[str, Any]:
        path = volume["path"]
        if not Path(path).is_dir():
            gone = {"free_bytes": 0, "why": f"it {GONE}", "calibration": None}
            return {**volume, **gone, "health": self._health.get(path), "traffic": traffic}
        calibration = read_calibration(Path(path))
        return {
            **volume,
            "free_bytes": shutil.disk_usage(path).free,
            "calibration": calibration.to_dict() if calibration else None,
            "health": self._health.get(path),
            "traffic": traffic,
        }
