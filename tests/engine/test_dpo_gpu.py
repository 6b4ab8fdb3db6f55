"""Preferences on a GPU: they agree with the CPU's, and placement and pauses change no bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from datasets import write_preferences
from runs import Run, assert_same_state
from tiny import make_tiny_llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
ANSWERS = [(9, 17), (30, 5), (12, 21), (8, 26), (14, 11), (6, 7), (19, 19)]
COMMON: dict[str, Any] = {
    "objective": "dpo", "max_steps": 5, "batch_rows": 4, "microbatch_rows": 2,
    "learning_rate": 1e-3, "max_grad_norm": 0.05, "device_bytes": 2**31,
}  # fmt: skip
HALF: dict[str, Any] = {"device": "cuda", "compute_dtype": "bfloat16"}


def ran(folder: Path, model: Path, **settings: Any) -> Run:
    data = folder / "rows"  # of its own: what another run knows would not be computed again
    if not data.exists():
        write_preferences(data, ANSWERS, vocab=384)
    run = Run(folder / "run", model, data, **{**COMMON, **settings})
    run.go()
    return run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model") / "model", tied=False, seed=3)


def said(run: Run, name: str) -> list[float]:
    return [m[name] for m in run.metrics()]


@pytest.mark.parametrize("packing", ["on", "off"])
def test_steps_agree_with_the_cpu(tmp_path: Path, model: Path, packing: str) -> None:
    cpu = ran(tmp_path / "cpu", model, packing=packing)
    gpu = ran(tmp_path / "gpu", model, packing=packing, device="cuda")
    half = ran(tmp_path / "half", model, packing=packing, **HALF)
    for name in ("loss", "reward_chosen", "reward_rejected"):
        assert said(gpu, name) == pytest.approx(said(cpu, name), abs=1e-4)
        assert said(half, name) == pytest.approx(said(cpu, name), abs=0.05)


def test_placement_never_changes_a_bit(tmp_path: Path, model: Path) -> None:
    plain = ran(tmp_path / "plain", model, recompute="all", clip_way="serial", **HALF)
    cases: dict[str, dict[str, Any]] = {
        "host": {"state_tier": "host", "clip_way": "speculative"},
        "device": {"state_tier": "device", "recompute": "none"},
        "slots": {"num_slots": 5, "clip_way": "deferred", "commit_every_steps": 3},
    }
    for name, settings in cases.items():
        other = ran(tmp_path / name, model, **settings, **HALF)
        assert_same_state(other.state(), plain.state())
