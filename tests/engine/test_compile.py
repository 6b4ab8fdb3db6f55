"""A compiled layer is one callable for forward, recompute and the kept graph: the same bits."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from datasets import write_dataset
from runs import Run, assert_same_state
from tiny import make_tiny_llama

DEVICES = [
    pytest.param(
        {"device": "cpu"},
        marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here"),
        id="cpu",
    ),
    pytest.param(
        {"device": "cuda", "compute_dtype": "bfloat16", "device_bytes": 2**30},
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
        ],
        id="cuda",
    ),
]


@pytest.mark.filterwarnings("ignore")  # the compiler imports what its own version deprecates
@pytest.mark.parametrize("device", DEVICES)
def test_kept_and_recomputed_activations_of_a_compiled_layer_give_the_same_bits(
    tmp_path: Path, device: dict[str, Any]
) -> None:
    """Rows of many lengths, in microbatches of one row and of more."""
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=3, layers=2)
    dataset = write_dataset(tmp_path / "data", [9, 17, 5, 30, 12], vocab=384)
    common = {**device, "compile": "dynamic", "max_steps": 3, "batch_rows": 3}
    again = Run(tmp_path / "again", model, dataset, recompute="all", **common)
    kept = Run(tmp_path / "kept", model, dataset, recompute="none", **common)
    eager = Run(tmp_path / "eager", model, dataset, **{**common, "compile": "off"})
    for run in (again, kept, eager):
        run.go()
    assert_same_state(kept.state(), again.state())
    losses = [m["loss"] for m in again.metrics()]
    assert losses == pytest.approx([m["loss"] for m in eager.metrics()], abs=0.02)
