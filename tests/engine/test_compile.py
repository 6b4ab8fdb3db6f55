"""A compiled layer is one callable for forward, recompute and the kept graph: the same bits."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datasets import write_dataset
from headrace.engine import TokenDataset, TrainConfig, shape_spec
from headrace.engine.data import step_microbatches
from headrace.engine.layer import LayerModule, param_views, trainable
from headrace.engine.packing import Arrangement, settle_microbatch
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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("how", "most"), [("dynamic", 1), ("static", 4)])
def test_packed_microbatches_of_any_lengths_share_few_compiled_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any, most: int
) -> None:
    """Counted with a backend that compiles nothing: what is compiled anew, Dynamo decides."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    rng = np.random.default_rng(2)
    lengths = [3, 400, *rng.integers(3, 200, 100).tolist()]
    dataset = TokenDataset.open(write_dataset(tmp_path / "data", lengths, vocab=384))
    config = TrainConfig(model="m", dataset="d", batch_rows=6, microbatch_rows=2, compile=how)
    arrangement = Arrangement.of(settle_microbatch(config, dataset.longest))
    spec = shape_spec("tiny", layers=1)
    module = LayerModule(spec, device=torch.device("cpu"), dtype=torch.float32, compile=how)
    layout = spec.of_kind("layer")[0]
    weights = param_views(torch.zeros(layout.num_elements), layout)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    shapes = set()
    for step in range(1, 7):
        for batch in step_microbatches(dataset, arrangement, step=step):
            hidden = torch.zeros(*batch.ids.shape, spec.hidden_size, requires_grad=True)
            positions = module.positions(batch.ids.shape[1], batch.lengths, packed=True)
            module.forward_only(layout, weights, hidden, positions)
            output = module.forward(layout, trainable(weights), hidden, positions)
            torch.autograd.backward(output.sum())
            shapes.add(batch.ids.shape)
    assert len(shapes) > 2
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= most
