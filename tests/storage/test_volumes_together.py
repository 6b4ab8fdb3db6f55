"""Several drives: stripes by speed, the same bytes back, and the slow or failing one named."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import FaultyDisk
from headrace.storage import HostSlot, IoFailed, StoreError, TensorStore, VolumeConfig
from headrace.storage.health import DriveLoad, warnings_of
from headrace.storage.rates import Calibration, read_calibration, write_calibration
from store_cases import content_of, expected, small_records, volumes_in, write_all

RECORDS = small_records(6, num_elements=60_000)
CALIBRATION = Calibration(
    measured_at="2026-11-29T00:00:00+00:00",
    active="direct",
    filesystem="ext4",
    full=False,
    read_bytes_per_second=2e9,
    write_bytes_per_second=1e9,
    mixed_bytes_per_second=1.5e9,
    first_write_bytes_per_second=1e9,
    written_bytes=0,
    seconds=5.0,
)


def _create(volumes: Sequence[VolumeConfig]) -> TensorStore:
    return TensorStore.create(volumes, RECORDS, name="job", reserve_bytes=0, stripe_bytes=4096)


def _calibrate(volume: VolumeConfig, rate: float) -> None:
    write_calibration(volume.path, replace(CALIBRATION, mixed_bytes_per_second=rate))


def test_one_directory_is_not_taken_for_two_volumes(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    for paths in ((real, link), (real, Path(real)), (real, link / ".." / "real")):
        with pytest.raises(StoreError, match="are the same directory"):
            _create([VolumeConfig(path=path) for path in paths])
    assert list(real.iterdir()) == []


def test_a_volume_that_is_taken_away_is_named(tmp_path: Path, slot: HostSlot) -> None:
    volumes = volumes_in(tmp_path, 2)
    with _create(volumes) as store:
        volumes[1].path.rename(tmp_path / "elsewhere")
        with pytest.raises(StoreError, match=f"{volumes[1].path} is not there .* mounted"):
            store.status()


def test_figures_stay_on_the_volume(tmp_path: Path) -> None:
    [volume] = volumes_in(tmp_path)
    assert read_calibration(volume.path) is None
    write_calibration(volume.path, CALIBRATION)
    assert read_calibration(volume.path) == CALIBRATION
    (volume.path / ".headrace-calibration.json").write_text('{"seconds": 5')
    assert read_calibration(volume.path) is None


@pytest.mark.parametrize("rates", [(3e9, 1e9), (1e9, 2e9, 4e9)])
def test_calibrated_volumes_take_bytes_by_their_speed(
    tmp_path: Path, slot: HostSlot, rates: tuple[float, ...]
) -> None:
    volumes = volumes_in(tmp_path, len(rates))
    for volume, rate in zip(volumes, rates, strict=True):
        _calibrate(volume, rate)
    with _create(volumes) as store:
        store.begin(1)
        write_all(store, slot, 1)
        store.commit({})
        status = store.status()
        written = [one.written_bytes for one in status.volumes]
        for one, rate, count in zip(status.volumes, rates, written, strict=True):
            assert one.share == pytest.approx(rate / sum(rates), rel=0.05)
            assert count / sum(written) == pytest.approx(one.share, rel=0.15)
            assert one.bytes_per_second == rate
        assert content_of(store, slot) == expected(RECORDS, slot, 1)


def test_volumes_of_unknown_speed_share_evenly(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path, 3)
    _calibrate(volumes[0], 5e9)
    with _create(volumes) as store:
        assert [one.share for one in store.status().volumes] == pytest.approx([1 / 3] * 3)


def test_a_throttle_counts_as_known_speed(tmp_path: Path) -> None:
    fast, slow = volumes_in(tmp_path, 2)
    _calibrate(fast, 4e9)
    _calibrate(slow, 4e9)
    with _create([fast, replace(slow, throttle_bytes_per_second=10**9)]) as store:
        assert [one.share for one in store.status().volumes] == pytest.approx([0.8, 0.2])


def test_a_volume_that_is_nearly_full_takes_less(tmp_path: Path) -> None:
    first, second = volumes_in(tmp_path, 2)
    with _create([first, second]) as store:
        even = store.status().total_bytes // 2
    TensorStore.remove([first, second], name="job")
    small = replace(second, limit_bytes=int(even * 0.8))
    with _create([first, small]) as store:
        assert (second.path / "job" / "data.bin").stat().st_size <= even * 0.8
        assert store.status().volumes[1].share < 0.45


def test_the_layout_stays_as_it_was_made(tmp_path: Path, slot: HostSlot) -> None:
    volumes = volumes_in(tmp_path, 2)
    _calibrate(volumes[0], 3e9)
    _calibrate(volumes[1], 1e9)
    with _create(volumes) as store:
        store.begin(1)
        write_all(store, slot, 1)
        store.commit({})
    _calibrate(volumes[0], 1e9)
    with TensorStore.open(volumes, name="job") as store:
        assert [one.share for one in store.status().volumes] == pytest.approx([0.75, 0.25])
        assert content_of(store, slot) == expected(RECORDS, slot, 1)


def _load(path: str, busy_seconds: float, **more: object) -> DriveLoad:
    values = {"moved_bytes": 10**10, "known_rate": None, "num_failed": 0, "last_error": ""}
    return DriveLoad(path=path, busy_seconds=busy_seconds, **{**values, **more})  # type: ignore[arg-type]


def test_the_drive_that_holds_the_others_up_is_named() -> None:
    [warning] = warnings_of([_load("/a", 10), _load("/b", 21), _load("/c", 11)])
    assert warning.text.startswith("volume /b holds the others up: busy for 21.0 s")
    assert "0.48 GB/s" in warning.text


def test_a_drive_below_its_calibration_is_named() -> None:
    [warning] = warnings_of([_load("/a", 10, known_rate=5e9)])
    assert "/a gives 1.00 GB/s while busy; it was calibrated at 5.00" in warning.text
    assert (warning.about, warning.badness) == ("/a: is slow", 5)


def test_even_drives_and_short_times_raise_no_warning() -> None:
    assert warnings_of([_load("/a", 10), _load("/b", 12)]) == []
    assert warnings_of([_load("/a", 0.1), _load("/b", 1.9)]) == []
    assert warnings_of([_load("/a", 10, known_rate=1.5e9)]) == []


def test_a_failing_drive_is_named(tmp_path: Path, slot: HostSlot) -> None:
    volumes = volumes_in(tmp_path, 2)
    disk = FaultyDisk()
    with TensorStore.create(
        volumes, RECORDS, name="job", reserve_bytes=0, open_volume=disk.open
    ) as store:
        store.begin(1)
        write_all(store, slot, 1)
        store.commit({})
        assert store.status().warnings == []
        disk.faults[disk.num_operations] = "eio"
        with pytest.raises(IoFailed) as caught:
            store.read_into("layers.0", slot).result()
        [warning] = store.status().warnings
    assert warning.text.startswith(f"volume {Path(caught.value.volume).parent}: 1 calls failed")
    assert "Input/output error" in warning.text
