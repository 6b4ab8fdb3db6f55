"""Wear is counted over the life of a store, told with the drive's figures, and bounded."""

import json
import stat
from pathlib import Path

import pytest

from headrace.storage import (
    DriveHealth,
    HostSlot,
    TensorStore,
    VolumeConfig,
    VolumeWear,
    WriteBudgetSpent,
    drive_health,
)
from headrace.storage.wear import block_device, parse_nvme, parse_smartctl
from store_cases import content_of, expected, small_records, volumes_in, write_all

RECORDS = small_records(2, num_elements=30_000)
NVME = {"percent_used": 12, "temperature": 310, "data_units_written": 2_000_000}
SMARTCTL = {
    "temperature": {"current": 41},
    "nvme_smart_health_information_log": {"percentage_used": 3, "data_units_written": 1000},
}


@pytest.fixture
def volumes(tmp_path: Path) -> list[VolumeConfig]:
    return volumes_in(tmp_path, 2)


def _step(store: TensorStore, slot: HostSlot, step: int) -> None:
    store.begin(step)
    write_all(store, slot, step)
    store.commit({})


def _written(store: TensorStore) -> int:
    return sum(one.store_written_bytes for one in store.wear())


def test_bytes_written_are_counted_over_the_life_of_the_store(
    volumes: list[VolumeConfig], slot: HostSlot
) -> None:
    with TensorStore.create(volumes, RECORDS, name="job", reserve_bytes=0) as store:
        _step(store, slot, 1)
        first = _written(store)
    padded = sum(record.padded_bytes for record in RECORDS)
    assert padded < first < padded + 50_000
    with TensorStore.open(volumes, name="job") as store:
        _step(store, slot, 2)
        assert _written(store) == pytest.approx(2 * first, rel=0.05)
        assert [one.path for one in store.wear()] == [str(one.path) for one in volumes]


def test_a_step_beyond_the_write_budget_does_not_begin_and_nothing_is_lost(
    volumes: list[VolumeConfig], slot: HostSlot
) -> None:
    with TensorStore.create(
        volumes, RECORDS, name="job", reserve_bytes=0, max_bytes_written=2_000_000
    ) as store:
        steps = 0
        with pytest.raises(WriteBudgetSpent, match="raise max_bytes_written") as caught:
            while True:
                _step(store, slot, steps + 1)
                steps += 1
        assert caught.value.written_bytes <= 2_000_000 == caught.value.limit_bytes
        assert steps == store.step > 2
    with TensorStore.open(volumes, name="job", max_bytes_written=900_000) as store:
        with pytest.raises(WriteBudgetSpent):
            store.begin(steps + 1)
        assert content_of(store, slot) == expected(RECORDS, slot, steps)
    with TensorStore.open(volumes, name="job", max_bytes_written=10**9) as store:
        _step(store, slot, steps + 1)


def test_what_was_begun_can_be_committed_when_the_budget_is_spent(
    volumes: list[VolumeConfig], slot: HostSlot
) -> None:
    with TensorStore.create(
        volumes, RECORDS, name="job", reserve_bytes=0, max_bytes_written=900_000
    ) as store:
        with pytest.raises(WriteBudgetSpent):
            for step in range(1, 9):
                store.begin(step)
                write_all(store, slot, step)
        assert store.commit({}).step == step - 1
        assert content_of(store, slot) == expected(RECORDS, slot, step - 1)


def test_prefilling_is_counted(volumes: list[VolumeConfig], slot: HostSlot) -> None:
    with TensorStore.create(volumes, RECORDS, name="job", reserve_bytes=0, prefill=True) as store:
        filled = _written(store)
        assert filled > 0.2 * store.status().total_bytes
        assert store.stats().links["nvme_write"].payload_bytes == 0
        _step(store, slot, 1)
        assert content_of(store, slot) == expected(RECORDS, slot, 1)
    with TensorStore.open(volumes, name="job") as store:
        assert _written(store) > filled


def test_the_drives_own_figures_are_read() -> None:
    assert parse_nvme(json.dumps(NVME)) == {
        "percentage_used": 12,
        "temperature_celsius": 36.9,
        "written_bytes": 1_024_000_000_000,
    }
    assert parse_smartctl(json.dumps(SMARTCTL)) == {
        "percentage_used": 3,
        "written_bytes": 512_000_000,
        "temperature_celsius": 41.0,
    }
    assert parse_smartctl("{}") == {}


def test_the_rest_of_a_drives_life_is_forecast() -> None:
    health = DriveHealth(device="nvme0n1", percentage_used=25, written_bytes=10**14)
    wear = VolumeWear(path="/a", store_written_bytes=10**12, health=health)
    assert wear.rated_bytes == 4 * 10**14
    assert wear.bytes_left() == 3 * 10**14
    assert wear.to_dict()["health"]["percentage_used"] == 25


@pytest.mark.parametrize("used", [None, 0])
def test_what_a_drive_does_not_say_is_unknown(used: int | None) -> None:
    health = DriveHealth(device="vda", percentage_used=used, written_bytes=10**12)
    wear = VolumeWear(path="/a", store_written_bytes=1, health=health)
    assert wear.rated_bytes is None and wear.bytes_left() is None


def _drive(sys: Path, path: Path, name: str, *, temperature: str | None = None) -> None:
    """A drive with one partition below `path`, in a tree like /sys."""
    number = path.stat().st_dev
    partition = sys / "devices" / name / f"{name}p1"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("1")
    (sys / "dev/block").mkdir(parents=True)
    (sys / "dev/block" / f"{number >> 8 & 0xFFF}:{number & 0xFF}").symlink_to(partition)
    monitor = sys / "block" / name / "device/hwmon3"
    monitor.mkdir(parents=True)
    if temperature is not None:
        (monitor / "temp1_input").write_text(temperature)


def _tool(folder: Path, name: str, output: str, *, fails: bool = False) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{'echo no >&2; exit 1' if fails else f'echo {output!r}'}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_drive_is_asked_through_nvme_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _drive(tmp_path / "sys", tmp_path, "nvme3n1")
    _tool(tmp_path, "nvme", json.dumps(NVME))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    health = drive_health(tmp_path, sys=tmp_path / "sys")
    assert (health.device, health.percentage_used, health.why) == ("nvme3n1", 12, "")


def test_without_rights_the_temperature_is_still_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _drive(tmp_path / "sys", tmp_path, "nvme3n1", temperature="38500\n")
    _tool(tmp_path, "nvme", "", fails=True)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    health = drive_health(tmp_path, sys=tmp_path / "sys")
    assert (health.percentage_used, health.temperature_celsius) == (None, 38.5)
    assert health.why == "nvme said: no"


def test_without_tools_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _drive(tmp_path / "sys", tmp_path, "vdz")
    monkeypatch.setenv("PATH", str(tmp_path))
    health = drive_health(tmp_path, sys=tmp_path / "sys")
    assert "installed to ask /dev/vdz" in health.why and health.percentage_used is None


def test_a_directory_without_a_drive_has_none(tmp_path: Path) -> None:
    assert block_device(tmp_path, tmp_path / "sys") is None
    assert drive_health(tmp_path, sys=tmp_path / "sys").why.startswith("the file system is not")
