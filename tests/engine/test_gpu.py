"""On a GPU: the run agrees with the CPU's, bf16 computes, and placement changes no bit."""

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
LENGTHS = [9, 17, 5, 30, 12, 21, 8, 26, 14, 11, 23]
COMMON = {"max_steps": 20, "batch_rows": 5, "device_bytes": 2**31}
BF16 = {"compute_dtype": "bfloat16", "device": "cuda"}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def inputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("inputs")
    model = make_tiny_llama(folder / "model", tied=request.param, seed=3)
    return model, write_dataset(folder / "data", LENGTHS, vocab=384)


def _run(folder: Path, inputs: Any, **settings: Any) -> Run:
    run = Run(folder, *inputs, **{**COMMON, **settings})
    run.go()
    return run


def _relative(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    names = [name for name in one if name.endswith("weight_hi")]
    assert names
    return max(
        float((one[n].double() - other[n].double()).norm() / other[n].double().norm())
        for n in names
    )


def test_twenty_steps_agree_with_the_cpu_in_fp32(inputs: Any, tmp_path: Path) -> None:
    cpu = _run(tmp_path / "cpu", inputs)
    gpu = _run(tmp_path / "gpu", inputs, device="cuda")
    losses = [m["loss"] for m in gpu.metrics()]
    assert losses == pytest.approx([m["loss"] for m in cpu.metrics()], abs=1e-4)
    # The high half of a weight is rounded to bf16: a last bit may tip, no more.
    assert _relative(gpu.state(), cpu.state()) < 1e-4


def test_bfloat16_compute_follows_the_fp32_losses(inputs: Any, tmp_path: Path) -> None:
    exact = _run(tmp_path / "fp32", inputs, device="cuda")
    bf16 = _run(tmp_path / "bf16", inputs, **BF16)
    losses = [m["loss"] for m in bf16.metrics()]
    assert losses == pytest.approx([m["loss"] for m in exact.metrics()], abs=0.05)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "settings",
    [
        {"state_tier": "host"},
        {"state_tier": "device"},
        {"state_tier": "device", "recompute": "none", "commit_every_steps": 3},
        {"num_slots": 2},
        {"num_slots": 5},
        {"recompute": "none"},
        {"clip_way": "speculative"},
        {"clip_way": "deferred", "commit_every_steps": 4},
        {"clip_way": "deferred", "state_tier": "host", "commit_every_steps": 3},
        {"state_tier": "host", "commit_every_steps": 3, "recompute": "none"},
        {"state_tier": "host", "optimizer_device": "device"},
        {"state_tier": "host", "optimizer_device": "host", "commit_every_steps": 3},
        {"state_tier": "host", "optimizer_host_share": 0.5, "clip_way": "deferred", "num_slots": 5},
        {"state_tier": "host", "optimizer_host_share": 0.5, "clip_way": "speculative"},
        {"state_tier": "host", "commit_every_steps": 6, "num_slots": 24},
        {"state_tier": "host", "commit_every_steps": 3, "activation_tier": "host"},
        {"activation_tier": "host", "num_slots": 2},
        {"activation_tier": "nvme", "num_slots": 2},
        {"activation_tier": "nvme", "state_tier": "device"},
        {"grad_tier": "host", "state_tier": "host", "commit_every_steps": 3},
        {"grad_tier": "host", "num_slots": 2},
        {"state_tier": "nvme", "commit_every_steps": 6, "num_slots": 6, "recompute": "auto"},
    ],
    ids=lambda settings: "-".join(f"{k}={v}" for k, v in settings.items()),
)
def test_placement_never_changes_a_bit_on_the_gpu(
    inputs: Any, tmp_path: Path, settings: dict[str, Any], dtype: str
) -> None:
    common = {"device": "cuda", "compute_dtype": dtype, "max_steps": 6}
    first = {"clip_way": "serial", "recompute": "all", **common}
    plain = _run(tmp_path / "plain", inputs, **first)
    other = _run(tmp_path / "other", inputs, **{**first, **settings})
    assert [m["loss"] for m in other.metrics()] == [m["loss"] for m in plain.metrics()]
    assert_same_state(other.state(), plain.state())


@pytest.mark.parametrize("state_format", ["q8", "sr_bf16", "sr_q8"])
@pytest.mark.parametrize(
    "settings",
    [
        {"clip_way": "speculative"},
        {"state_tier": "device", "recompute": "none"},
        {"clip_way": "deferred", "state_tier": "host", "commit_every_steps": 3},
    ],
    ids=["redone", "resident", "deferred"],
)
def test_nor_does_it_in_a_compact_format(
    inputs: Any, tmp_path: Path, settings: dict[str, Any], state_format: str
) -> None:
    common = {"max_steps": 6, "state_format": state_format, **BF16}
    first = {"clip_way": "serial", "recompute": "all", **common}
    plain = _run(tmp_path / "plain", inputs, **first)
    other = _run(tmp_path / "other", inputs, **{**first, **settings})
    assert_same_state(other.state(), plain.state())


def test_the_device_budget_holds(inputs: Any, tmp_path: Path) -> None:
    torch.cuda.reset_peak_memory_stats()
    run = _run(tmp_path, inputs, **BF16)
    (plan,) = [event.data for event in run.events if event.type == "plan"]
    assert run.metrics()[-1]["device_peak_bytes"] <= plan["total_device_bytes"]
