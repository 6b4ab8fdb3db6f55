"""`headrace doctor` says what is known of a drive, and never makes up what is not."""

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.service.cli import doctor, doctor_drives
from headrace.service.settings import Settings
from headrace.service.site import probe_volumes
from headrace.storage import Calibration, DriveHealth, write_calibration


def _health(monkeypatch: pytest.MonkeyPatch, health: DriveHealth) -> None:
    monkeypatch.setattr("headrace.storage.wear.drive_health", lambda path: health)


def test_a_volume_is_followed_by_its_drive(tmp_path: Path) -> None:
    told: list[str] = []
    found = doctor.examine([str(tmp_path)], tmp_path, device="cpu", tell=told.append)
    checks = {one.name: one for one in found}
    assert told[0].startswith("loading torch") and str(tmp_path) in told[-1]
    assert "headrace calibrate" in checks[f"speed {tmp_path}"].found
    assert checks[f"wear {tmp_path}"].verdict in ("pass", "warn")
    assert f"GPUDirect Storage {tmp_path}" not in checks


def test_a_speed_that_is_in_doubt_is_a_warning(tmp_path: Path) -> None:
    known = Calibration(
        measured_at="2026-11-30T12:00:00+00:00", full=False, active="direct", filesystem="ext4",
        read_bytes_per_second=2e9, write_bytes_per_second=1e9, mixed_bytes_per_second=1e9,
        first_write_bytes_per_second=1e9, written_bytes=0, seconds=5.0,
    )  # fmt: skip
    write_calibration(tmp_path, known)
    assert doctor_drives.check_speed(tmp_path).verdict == "pass"
    write_calibration(tmp_path, replace(known, full=True, drift="in a run since, it was slow"))
    check = doctor_drives.check_speed(tmp_path)
    assert check.verdict == "warn" and check.found.endswith("; in a run since, it was slow")
    assert "headrace calibrate --full" in check.fix


def test_a_worn_drive_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _health(monkeypatch, DriveHealth(device="nvme0n1", percentage_used=85, temperature_celsius=40))
    check = doctor_drives.check_wear(tmp_path)
    assert check.verdict == "warn" and "85 % of its rated life used, 40 °C" in check.found


def test_wear_that_cannot_be_read_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _health(monkeypatch, DriveHealth(device="vda", why="no tool"))
    assert doctor_drives.check_wear(tmp_path).found == "unknown: no tool"


def test_gds_without_kvikio_is_no_fault(tmp_path: Path) -> None:
    check = doctor_drives.check_gds(tmp_path)
    assert check.verdict == "pass" and "kvikio is not installed" in check.found


def test_a_limit_beyond_the_free_drive_is_a_warning(tmp_path: Path) -> None:
    (check,) = doctor.check_limits([f"{tmp_path}:900TB"])
    assert check.verdict == "warn" and "900,000.0 GB" in check.found and "free" in check.found
    assert [one.verdict for one in doctor.check_limits([f"{tmp_path}:1MB"])] == ["pass"]
    assert not list(doctor.check_limits([str(tmp_path)]))


def test_a_start_warns_of_a_limit_beyond_the_free_drive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for limit, times in (("900TB", 1), ("1MB", 0)):
        caplog.clear()
        probe_volumes(Settings(data_dir=tmp_path, volumes=(f"{tmp_path}:{limit}",)))
        told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert len(told) == times and all("by its limit, but" in one for one in told)


def test_a_full_volume_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.storage.volume.free_bytes", lambda path: 0)
    check = doctor.check_volume(str(tmp_path))
    assert (check.verdict, "0 B free" in check.found) == ("warn", True)
    assert "it is full" in check.fix
