"""What was found to fit never takes more memory than planned: a few of the bench's random runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.random_budgets import ALLOCATOR, judge, taken_and_planned


def test_random_runs_within_random_budgets_keep_to_their_plans(tmp_path: Path) -> None:
    """In a process of their own, whose memory after the imports is the base."""
    command = [sys.executable, "-m", "bench.random_budgets", "--child", "--runs", "4", "--seed",
               "8", "--minutes", "4", "--volume", str(tmp_path)]  # fmt: skip
    environment = {**os.environ, **ALLOCATOR, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ran = [run for run in json.loads(done.stdout) if "refused" not in run]
    assert len(ran) == 4 and all(run["holds"] for run in ran), done.stderr
    assert all(run["peak_above_import_bytes"] > 0.2 * run["planned_bytes"] for run in ran)
    assert {tier for run in ran for tier in run["tiers"]} >= {"host", "nvme"}


@pytest.mark.parametrize(("reserved", "holds"), [(3 * 2**30, True), (3 * 2**30 + 1, False)])
def test_torch_may_reserve_what_is_planned_beside_the_start_up_of_cuda(
    monkeypatch: pytest.MonkeyPatch, reserved: int, holds: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: reserved)
    plan = {"total_host_bytes": 0, "total_device_bytes": 4 * 2**30,
            "device_bytes": {"runtime": 2**30}, "tiers": ["device"]}  # fmt: skip
    row = judge(plan, 0, "cuda", 0)
    assert row["holds"] is holds
    assert taken_and_planned(row) == (reserved, 3 * 2**30)
