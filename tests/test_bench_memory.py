"""The table of device memory: what is counted as used, and when a budget holds."""

import sys
from pathlib import Path

import pytest

from bench import device_memory
from bench.watch import PeakMemory
from forked import run_forked

MIB = 2**20


def test_the_peak_is_above_what_was_used_at_the_start() -> None:
    used = iter([100, 150, 130, 120])
    peak = PeakMemory(lambda: next(used))
    assert [peak.sample(), peak.sample(), peak.sample()] == [50, 30, 20]
    assert peak.bytes == 50


def test_a_run_is_measured_beside_its_plan_with_the_largest_microbatch_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["--device", "cpu", "--shape", "tiny", "--layers", "2", "--compile", "off"]
    command += ["--tokens-per-row", "64", "--batch-rows", "4", "--steps", "1"]
    monkeypatch.setattr(sys, "argv", ["device_memory", *command, "--host-bytes", "600MiB"])
    arguments = device_memory.parse_arguments()
    found = device_memory.measure(arguments, 600 * MIB)
    assert found["planned_bytes"] <= found["limit_bytes"] == 1200 * MIB
    assert found["microbatch_rows"] == 4 and found["peak_bytes"] > 0
    assert "holds" in device_memory.line({"budget": "600MiB", **found, "holds": True})
    arguments.tokens_per_row = 512  # what layers take is then more than what the loss does
    assert device_memory.make_config(arguments, 250 * MIB).microbatch_rows == 4
    assert device_memory.make_config(arguments, 170 * MIB).microbatch_rows < 4


def test_a_budget_that_fails_is_said_and_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_memory, "run_apart", run_forked)
    command = ["--device", "cpu", "--shape", "huge", "--budget", "1MiB"]
    monkeypatch.setattr(sys, "argv", ["device_memory", *command])
    assert device_memory.main() == 1
    assert "1MiB: failed (1)" in capsys.readouterr().err
