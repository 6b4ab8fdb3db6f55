import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.service import drive_watch
from headrace.service.drive_watch import DriveWatch
from headrace.storage import DriveHealth, VolumeConfig, calibrate_volume


def test_what_is_not_known_of_a_drive_is_none(tmp_path: Path) -> None:
    (volume,) = DriveWatch([{"path": str(tmp_path), "active": "direct"}]).status({})
    assert volume["active"] == "direct" and volume["free_bytes"] > 0
    assert (volume["health"], volume["calibration"], volume["traffic"]) == (None, None, None)


def test_a_volume_that_goes_away_is_told_and_breaks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "volume"
    path.mkdir()
    watch = DriveWatch([{"path": str(path), "active": "direct", "why": "bytes came back"}])
    assert watch.missing() == []
    path.rmdir()
    (volume,) = watch.status({})
    assert volume["free_bytes"] == 0 and "is its drive mounted?" in volume["why"]
    assert watch.missing() == [str(path)]

    async def look_once() -> None:
        task = asyncio.create_task(watch.run())
        while watch.status({})[0]["health"] is None:
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(asyncio.wait_for(look_once(), 10))


def test_a_drives_health_speed_and_traffic_stand_beside_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate_volume(VolumeConfig.parse(f"{tmp_path}:300MB"))

    def look(path: Path) -> DriveHealth:
        return DriveHealth(device=path.name, percentage_used=3, temperature_celsius=41.0)

    monkeypatch.setattr(drive_watch, "drive_health", look)
    watch = DriveWatch([{"path": str(tmp_path)}])

    async def watch_for_a_while() -> None:
        task = asyncio.create_task(watch.run())
        while watch.status({})[0]["health"] is None:
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(asyncio.wait_for(watch_for_a_while(), 10))
    traffic: dict[str, Any] = {"read_bytes_per_second": 1.0, "write_bytes_per_second": 2.0}
    (volume,) = watch.status({str(tmp_path): traffic})
    assert volume["health"]["percentage_used"] == 3
    assert volume["calibration"]["mixed_bytes_per_second"] > 0
    assert volume["traffic"] == traffic
