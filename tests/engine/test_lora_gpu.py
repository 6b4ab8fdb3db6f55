"""Adapters on a GPU: they agree with the CPU's, and where the base lives changes no bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from datasets import write_dataset
from runs import Run, assert_same_state
from tiny import make_tiny_llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
LENGTHS = [24, 9, 17, 5, 30]
COMMON: dict[str, Any] = {
    "method": "lora", "lora_rank": 4, "max_steps": 6, "batch_rows": 5, "microbatch_rows": 2,
    "learning_rate": 1e-2, "max_grad_norm": 0.05, "device_bytes": 2**31,
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    model = make_tiny_llama(folder / "model", tied=False, seed=3)
    return model, write_dataset(folder / "data", LENGTHS, vocab=384)


def ran(folder: Path, inputs: tuple[Path, Path], **settings: Any) -> Run:
    run = Run(folder, *inputs, **{**COMMON, **settings})
    run.go()
    return run


def losses(run: Run) -> list[float]:
    return [m["loss"] for m in run.metrics()]


@pytest.mark.parametrize("base", ["auto", "nf4", "int8"])
def test_steps_agree_with_the_cpu(tmp_path: Path, inputs: Any, base: str) -> None:
    cpu = ran(tmp_path / "cpu", inputs, frozen_format=base)
    gpu = ran(tmp_path / "gpu", inputs, frozen_format=base, device="cuda")
    assert losses(gpu) == pytest.approx(losses(cpu), abs=1e-4)
    half = ran(
        tmp_path / "half", inputs, frozen_format=base, device="cuda", compute_dtype="bfloat16"
    )
    assert losses(half) == pytest.approx(losses(cpu), abs=0.05)


@pytest.mark.parametrize("base", ["auto", "nf4", "int8"])
def test_where_the_base_lives_never_changes_a_bit(tmp_path: Path, inputs: Any, base: str) -> None:
    common: dict[str, Any] = {"frozen_format": base, "device": "cuda", "compute_dtype": "bfloat16"}
    plain = ran(tmp_path / "plain", inputs, recompute="all", **common)
    cases: dict[str, dict[str, Any]] = {
        "host": {"state_tier": "host", "recompute": "none"},
        "device": {"state_tier": "device", "recompute": "all"},
        "slots": {"num_slots": 5, "recompute": "none"},
    }
    for name, settings in cases.items():
        other = ran(tmp_path / name, inputs, **settings, **common)
        assert_same_state(other.state(), plain.state())
