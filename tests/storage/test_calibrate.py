"""Measuring: loads move what they are told, and calibration leaves its figures and no more."""

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from fakes import FaultyDisk, MemoryVolume
from headrace.storage import (
    HostArena,
    IoFailed,
    NoSpace,
    VolumeConfig,
    calibrate_volume,
    probe_volume,
    read_calibration,
)
from headrace.storage.load import LoadKind, run_load
from store_cases import volumes_in

MIB = 1 << 20
module = import_module("headrace.storage.calibrate")


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VolumeConfig:
    """A volume, and calibration cut short."""
    monkeypatch.setattr(module, "SECONDS", 0.8)
    monkeypatch.setattr(module, "_REGION_BYTES", 128 * MIB)
    return volumes_in(tmp_path)[0]


def test_a_volume_is_measured_at_its_speed(volume: VolumeConfig) -> None:
    parts: list[str] = []
    found = calibrate_volume(
        replace(volume, throttle_bytes_per_second=400_000_000), report=parts.append
    )
    for rate in (found.read_bytes_per_second, found.mixed_bytes_per_second):
        assert 200e6 < rate < 401e6
    assert parts == ["first write", "write", "read", "mixed"]
    assert read_calibration(volume.path) == found
    assert [path.name for path in volume.path.iterdir()] == [".headrace-calibration.json"]


def test_too_little_room_is_said_with_the_numbers(volume: VolumeConfig) -> None:
    with pytest.raises(NoSpace, match="100000000 of .* measuring wants 268435456"):
        calibrate_volume(replace(volume, limit_bytes=100_000_000))
    assert list(volume.path.iterdir()) == []


def _buffers(arena: HostArena) -> Sequence[memoryview]:
    return [arena.carve(4096).view for _ in range(3)]


@pytest.mark.parametrize(
    ("kind", "read", "written"), [("read", 10, 0), ("write", 0, 10), ("mixed", 5, 5)]
)
def test_a_load_moves_as_many_bytes_as_it_is_told(kind: LoadKind, read: int, written: int) -> None:
    volume = MemoryVolume(Path("/drive/data"), bytearray(8 * 4096))
    with HostArena(MIB) as arena:
        result = run_load(
            volume, _buffers(arena), kind, region=(4096, 8 * 4096), num_bytes=10 * 4096
        )
    assert (result.read_bytes, result.written_bytes) == (read * 4096, written * 4096)
    assert result.bytes_per_second == 10 * 4096 / result.seconds


def test_a_load_ends_when_its_time_is_over() -> None:
    volume = MemoryVolume(Path("/drive/data"), bytearray(8 * 4096))
    with HostArena(MIB) as arena:
        result = run_load(
            volume, _buffers(arena), "read", region=(0, 8 * 4096), num_bytes=1 << 60,
            limit_seconds=0.05,
        )  # fmt: skip
    assert result.seconds >= 0.05 and result.read_bytes < 1 << 60


def test_a_load_raises_what_the_drive_raises(volume: VolumeConfig, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(8 * 4096))
    disk = FaultyDisk({3: "eio"})
    faulty = disk.open(probe_volume(volume), path, False)
    with HostArena(MIB) as arena, pytest.raises(IoFailed, match="Input/output error"):
        run_load(faulty, _buffers(arena), "read", region=(0, 8 * 4096), num_bytes=100 * 4096)
