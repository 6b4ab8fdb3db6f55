"""The table of GPU steps goes on where it stopped, says what failed, and judges by the limit."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_step
from bench.gpu_cases import CASES
from bench.gpu_table import limit_of_way, promises, table
from bench.links import copy_limit_seconds, loaded_drive
from forked import run_forked
from headrace.storage.load import LoadKind

RATES = {"h2d": 50.0, "d2h": 40.0, "each_of_both": 20.0}


def run_bench(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu_step", *map(str, arguments)])
    return gpu_step.main()


def row(case: str, who: str, **result: Any) -> dict[str, Any]:
    return {"case": case, "who": who, "wall_seconds": 1.0, "result": result}


def test_a_contender_that_is_in_the_results_is_left_alone_and_a_failed_one_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.jsonl"
    kept = [
        row("smoke", "pytorch", tflops=1.0),
        {"case": "smoke", "who": "headrace", "failed": "1"},
    ]
    results.write_text("".join(json.dumps(one) + "\n" for one in kept))
    tried = []

    def run(case: str, who: str, arguments: Any, *, limit: float) -> dict[str, Any]:
        tried.append((case, who, limit))
        return {"case": case, "who": who, "wall_seconds": 0, "failed": "boom", "said": "why"}

    monkeypatch.setattr(gpu_step, "run_contender", run)
    assert run_bench(monkeypatch, "--results", results, "--case", "smoke") == 0
    assert [who for _, who, _ in tried] == ["pytorch-checkpoint", "headrace", "headrace-clipping"]
    assert len(results.read_text().splitlines()) == 5
    assert "failed (boom)" in capsys.readouterr().out


def test_a_contender_runs_in_a_process_of_its_own_and_one_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.jsonl"
    common = ("--results", results, "--case", "smoke", "--least-seconds", "0")
    run_bench(monkeypatch, *common, "--who", "headrace-clipping")
    run_bench(monkeypatch, *common, "--who", "pytorch", "--seconds", "0.2")
    good, ended = (json.loads(line) for line in results.read_text().splitlines())
    assert good["result"]["limit"]["ratio_to_moved"] > 0 and good["result"]["ways"] == ["serial"]
    assert ended["failed"] == "no result within 0 s"
    capsys.readouterr()
    assert run_bench(monkeypatch, "--results", results, "--table") == 0
    assert "smoke headrace-clipping" in capsys.readouterr().out


def test_promises_are_judged_by_the_results(tmp_path: Path) -> None:
    found = {
        "headrace": row("12x16k", "headrace", tflops=580, step_seconds=0.5),
        "headrace-clipping": row("12x16k", "headrace-clipping", tflops=500, step_seconds=0.58),
        "headrace-deterministic": row("12x16k", "x", tflops=570, step_seconds=0.51),
        "pytorch": row("12x16k", "pytorch", tflops=400),
        "pytorch-compiled": {"case": "12x16k", "who": "pytorch-compiled", "failed": "1"},
    }
    assert promises("12x16k", found) == [
        "holds: x pytorch 1.45 (promised 1.15)",
        "MISSED: clipping, of not clipping 0.86 (promised 0.9)",
        "deterministic costs 2.0%",
    ]


def test_the_limit_of_a_link_lets_both_ways_run_at_once() -> None:
    assert copy_limit_seconds(100, 100, RATES) == 5
    assert copy_limit_seconds(200, 100, RATES) == 5 + 2
    assert copy_limit_seconds(100, 180, RATES) == 5 + 2


@pytest.mark.parametrize(("way", "seconds"), [("deferred", 5.0 + 3.0), ("speculative", 5.0)])
def test_what_a_deferred_update_moves_is_not_hidden_by_backward(way: str, seconds: float) -> None:
    passes = {"forward": {"compute": 1.0}, "backward": {"compute": 3.0}}
    result = {"ways": [way, way], "passes": passes, "limit": {"moved_seconds": 5.0}}
    assert limit_of_way(result) == seconds


def test_the_drive_is_measured_with_reads_with_writes_and_with_both_in_turn(tmp_path: Path) -> None:
    kinds: tuple[LoadKind, ...] = ("read", "write", "mixed")
    with loaded_drive(tmp_path, file_bytes=2**27, num_bytes=2**28) as rate:
        assert min(rate(kind) for kind in kinds) > 0
    assert list(tmp_path.iterdir()) == []


def test_each_step_is_held_to_what_the_drive_gave_just_before_and_behind_it() -> None:
    result = {
        "num_params": 10, "link_bytes": {"nvme_read": 100, "nvme_write": 100}, "step_seconds": 30.0,
        "all_step_seconds": [99.0, 20.0, 40.0, 30.0], "commit_seconds": 0.0,
    }  # fmt: skip
    # A drive that halves in the middle and comes back: what it gave in a step is the mean of both.
    found = gpu_step.limit_of(CASES["smoke"], result, {"mixed": [10.0, 10.0, 5.0, 10.0]})
    assert found["moved_seconds"] == pytest.approx(200 / 7.5)
    assert found["ratio_to_moved"] == pytest.approx(200 / 7.5 / 30)  # of 1, 0.67 and 0.89
    assert found["ratio_to_needed"] == pytest.approx(260 / 7.5 / 30)


def test_a_table_shows_the_last_result_of_each(tmp_path: Path) -> None:
    result = {"step_seconds": 1, "tflops": 2, "tokens_per_second": 3, "peak_gib": 4,
              "peak_reserved_gib": 5, "host_peak_gib": 6}  # fmt: skip
    rows = [row("24x16k", "pytorch", **{**result, "step_seconds": s}) for s in (7, 8)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    assert "8.000 s/step" in table(path) and "7.000" not in table(path)


def test_a_base_that_training_writes_and_a_budget_that_is_passed_are_told() -> None:
    result = {"num_params": 70, "num_trained_params": 2, "device_used_gib": 24.5,
              "host_peak_gib": 47.0, "written_bytes": {"frozen": 4}}  # fmt: skip
    assert promises("70b-qlora", {"headrace": row("70b-qlora", "headrace", **result)}) == [
        "MISSED: device 24.50 GiB (promised at most 24)",
        "holds: host 47.00 GiB (promised at most 48)",
        "MISSED: 4 bytes of what is frozen written by training",
    ]


def test_a_contender_with_adapters_tells_its_memory_and_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_step, "run_apart", run_forked)
    run_bench(monkeypatch, "--results", tmp_path / "rows.jsonl", "--case", "smoke-qlora")
    said = capfd.readouterr()
    assert "step 2 of 2" in said.err and "frozen 0, weights" in said.out
    (found,) = (json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines())
    assert found["result"]["written_bytes"]["weights"] > 0
    assert found["result"]["num_trained_params"] < found["result"]["num_params"]
    lines = promises("smoke-qlora", {"headrace": found})
    assert len(lines) == 3 and all(line.startswith("holds") for line in lines)
