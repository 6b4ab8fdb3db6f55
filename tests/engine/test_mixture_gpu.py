"""Mixtures on a GPU: they agree with the CPU's, and where state lives changes no bit of them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from datasets import write_dataset
from runs import Run, assert_same_state
from tiny_families import write_family

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
LENGTHS = [24, 9, 17, 5, 30]
COMMON: dict[str, Any] = {
    "max_steps": 6, "batch_rows": 5, "microbatch_rows": 2, "learning_rate": 1e-3,
    "max_grad_norm": 0.5, "device_bytes": 2**31, "router_aux_loss_coef": 0.1,
}  # fmt: skip
ADAPTERS: dict[str, Any] = {"method": "lora", "lora_rank": 4, "lora_export": "merged"}
HALF: dict[str, Any] = {"device": "cuda", "compute_dtype": "bfloat16"}


@pytest.fixture(scope="module", params=["mixtral", "qwen3_moe"])
def inputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("inputs")
    model = write_family(folder / "model", request.param)
    return model, write_dataset(folder / "data", LENGTHS, vocab=384)


def ran(folder: Path, inputs: Any, **settings: Any) -> Run:
    run = Run(folder, *inputs, **{**COMMON, **settings})
    run.go()
    return run


def told(run: Run, name: str) -> list[float]:
    return [m[name] for m in run.metrics()]


@pytest.mark.parametrize("method", [{}, ADAPTERS, {**ADAPTERS, "frozen_format": "nf4"}])
def test_losses_and_balance_agree_with_the_cpu(
    tmp_path: Path, inputs: Any, method: dict[str, Any]
) -> None:
    cpu = ran(tmp_path / "cpu", inputs, **method)
    gpu = ran(tmp_path / "gpu", inputs, device="cuda", **method)
    half = ran(tmp_path / "half", inputs, **HALF, **method)
    for name in ("loss", "router_aux_loss"):
        assert told(gpu, name) == pytest.approx(told(cpu, name), abs=1e-4)
        assert told(half, name) == pytest.approx(told(cpu, name), abs=0.1)


@pytest.mark.parametrize("method", [{}, ADAPTERS])
def test_where_the_state_lives_never_changes_a_bit(
    tmp_path: Path, inputs: Any, method: dict[str, Any]
) -> None:
    plain = ran(tmp_path / "plain", inputs, recompute="all", **HALF, **method)
    cases: dict[str, dict[str, Any]] = {
        "host": {"state_tier": "host", "recompute": "none"},
        "device": {"state_tier": "device", "recompute": "all"},
        "slots": {"num_slots": 5, "recompute": "none"},
    }
    for name, settings in cases.items():
        other = ran(tmp_path / name, inputs, **settings, **HALF, **method)
        assert_same_state(other.state(), plain.state())
        assert told(other, "router_aux_loss") == told(plain, "router_aux_loss")
