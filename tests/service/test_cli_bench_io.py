"""`headrace bench io` and `headrace calibrate` measure, say what was missed, and clean up."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from command import run_json
from headrace.service.__main__ import main
from headrace.service.cli import bench_io, io_methods
from headrace.service.cli.output import Exit

SMALL = ("--rounds", "2", "--size", "32MiB", "--block", "1MiB", "--depth", "1", "--depth", "2")


def test_every_case_is_measured_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_methods, "fio_version", lambda: None)
    code, found = run_json(capsys, "bench", "io", "--volume", tmp_path, *SMALL)
    assert code in (Exit.OK, Exit.FAILED)
    assert (code == Exit.OK) == all(found["holds"].values())
    assert found["fio"] == "not installed" and "fio" not in found["holds"]
    cases = {(one["kind"], one["block_bytes"], one["depth"]): one for one in found["cases"]}
    for kind in ("read", "write", "mixed"):
        for depth in (1, 2):
            one = cases[kind, 1 << 20, depth]
            assert len(one["rounds"]["headrace"]) == 2 and one["cpu_seconds_per_gb"] >= 0
        busy = cases[kind, 1 << 20, bench_io.DEPTH]
        assert len(busy["rounds"]["headrace, busy"]) == 2
    assert cases["read", 1 << 20, bench_io.DEPTH]["median_bytes_per_second"]["aiofiles 4M"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_fio_takes_its_turns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(io_methods, "huge_pages", lambda _: nullcontext(False))
    _, found = run_json(capsys, "bench", "io", "--volume", tmp_path, *SMALL[:8])
    assert found["fio"].startswith("fio-")
    [read] = [one for one in found["cases"] if one["kind"] == "read" and one["depth"] == 1]
    assert len(read["rounds"]["fio"]) == 2 and read["ratio_to_fio"] > 0


def _case(ratio: float, busy: float, cpu: float) -> dict[str, float]:
    return {"ratio_to_fio": ratio, "ratio_beside_busy_thread": busy, "cpu_seconds_per_gb": cpu}


def test_one_missed_floor_is_not_averaged_away() -> None:
    good, bad = _case(0.93, 0.75, 0.05), _case(0.92, 0.74, 0.06)
    assert all(bench_io._holds({"cases": [good]}).values())
    assert not any(bench_io._holds({"cases": [good, bad]}).values())


def test_a_volume_of_no_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "io", "--volume", str(tmp_path / "nowhere")])
    assert ended.value.code == Exit.USAGE


def test_calibrate_leaves_its_figures_on_the_volume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import headrace.storage.calibrate  # noqa: F401  so that there is something to cut short
    from headrace.engine import measure_box, measure_shape

    monkeypatch.setattr("headrace.storage.calibrate.SECONDS", 0.4)
    monkeypatch.setattr(measure_shape, "TOKENS", {"cpu": (16,)})
    monkeypatch.setattr(measure_box, "PART_SECONDS", {False: 0.0, True: 0.0})
    monkeypatch.setattr(measure_box, "ELEMENTS", {"cpu": 2**14, "cuda": 2**14})
    code, said = run_json(
        capsys, "calibrate", "--volume", f"{tmp_path}:600MB", "--data-dir", tmp_path / "data",
        "--device", "cpu", "--shape", "tiny",
    )  # fmt: skip
    (found,) = said["volumes"]
    assert code == Exit.OK and found["volume"].startswith(str(tmp_path))
    assert json.loads((tmp_path / ".headrace-rates.json").read_text())["rates"]["shapes"]
    assert said["compute"]["h2d"] > 0
    kept = json.loads((tmp_path / ".headrace-calibration.json").read_text())
    assert kept["read_bytes_per_second"] == found["read_bytes_per_second"] > 0
