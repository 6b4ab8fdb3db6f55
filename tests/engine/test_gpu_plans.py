"""The GPU tests give their runs enough memory: their plans are made where there is no GPU too."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU tests themselves run here")
def test_every_run_of_the_gpu_tests_has_a_plan() -> None:
    """What the planner counts on a GPU has grown before, and no test without one said so."""
    files = [p for p in sorted(HERE.glob("test_*.py")) if "mark.gpu" in p.read_text()]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "gpu_plans", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "gpu", "--tb=line", *map(str, files)],
        capture_output=True, text=True, cwd=HERE.parent.parent, timeout=600,
    )  # fmt: skip
    words = done.stdout.splitlines()[-1]
    assert done.returncode == 0, done.stdout[-4000:]
    num_passed = int(words.split(" passed")[0].split()[-1])
    assert num_passed >= 150, done.stdout[-4000:]  # the others' work is kernels alone
