"""A compiled layer is one callable for forward, recompute and the kept graph: the same bits."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import counters
from torch._inductor import config as inductor
from transformers import CONFIG_MAPPING

from datasets import write_dataset
from headrace.engine import TokenDataset, TrainConfig, compiles_well, shape_spec
from headrace.engine.data import step_microbatches
from headrace.engine.layer import LayerModule, param_views
from headrace.engine.packing import Arrangement, settle_microbatch
from headrace.engine.source import spec_from_config
from runs import Run, assert_same_state
from tiny import make_tiny_llama
from tiny_families import CASES, SHARED

DEVICES = [
    pytest.param(
        {"device": "cpu"},
        marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here"),
        id="cpu",
    ),
    pytest.param(
        {"device": "cuda", "compute_dtype": "bfloat16", "device_bytes": 2**31},
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
        ],
        id="cuda",
    ),
]


# The compiler imports what its own version deprecates.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A folder for compiled layers, shared by the tests; the variables are as before afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            patch.setenv(name, "")
        # The processor's word for its vectors, not ten trials. By torch's own hand: what is not set
        # until it is asked for would be gone afterwards.
        with inductor.patch({"cpp.vec_isa_ok": True, "compile_threads": 1}):
            yield str(tmp_path_factory.mktemp("compiled"))


@pytest.mark.parametrize("device", DEVICES)
def test_kept_and_recomputed_activations_of_a_compiled_layer_give_the_same_bits(
    tmp_path: Path, device: dict[str, Any], compile_cache: str
) -> None:
    """Rows of many lengths, in microbatches of one row and of more."""
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=3, layers=2)
    dataset = write_dataset(tmp_path / "data", [9, 17, 5, 30, 12], vocab=384)
    common = {**device, "compile": "dynamic", "compile_cache": compile_cache}
    common |= {"max_steps": 3, "batch_rows": 3}
    again = Run(tmp_path / "again", model, dataset, recompute="all", **common)
    kept = Run(tmp_path / "kept", model, dataset, recompute="none", **common)
    eager = Run(tmp_path / "eager", model, dataset, **{**common, "compile": "off"})
    for run in (again, kept, eager):
        run.go()
    assert_same_state(kept.state(), again.state())
    losses = [m["loss"] for m in again.metrics()]
    assert losses == pytest.approx([m["loss"] for m in eager.metrics()], abs=0.02)


@pytest.mark.parametrize("device", DEVICES)
def test_a_compiler_without_memory_finds_the_layer_in_the_folder_that_was_given(
    tmp_path: Path, device: dict[str, Any], compile_cache: str
) -> None:
    """As in a second process: what the compiler holds in memory is dropped between the runs."""
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=3, layers=2)
    dataset = write_dataset(tmp_path / "data", [9, 17, 5, 30, 12], vocab=384)
    common = {**device, "compile": "dynamic", "compile_cache": compile_cache}
    common |= {"max_steps": 1, "batch_rows": 3}
    states = []
    for name in ("first", "second"):
        torch._dynamo.reset()
        counters.clear()
        run = Run(tmp_path / name, model, dataset, **common)
        run.go()
        states.append(run.state())
    assert any(Path(compile_cache).iterdir())
    assert counters["inductor"]["fxgraph_cache_hit"] > 0
    assert counters["inductor"]["fxgraph_cache_miss"] == 0
    assert_same_state(*states)


@pytest.mark.parametrize(
    ("packing", "how", "most"), [("on", "dynamic", 1), ("on", "static", 4), ("off", "dynamic", 2)]
)
def test_microbatches_of_any_lengths_share_few_compiled_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: Any, how: Any, most: int
) -> None:
    """Counted with a backend that compiles nothing: what is compiled anew, Dynamo decides."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    rng = np.random.default_rng(2)
    lengths = [3, 400, *rng.integers(3, 200, 100).tolist()]
    dataset = TokenDataset.open(write_dataset(tmp_path / "data", lengths, vocab=384))
    config = TrainConfig(
        model="m", dataset="d", batch_rows=5, microbatch_rows=2, compile=how, packing=packing
    )
    arrangement = Arrangement.of(settle_microbatch(config, dataset.longest))
    spec = shape_spec("tiny", layers=1)
    module = LayerModule(spec, device=torch.device("cpu"), dtype=torch.float32, compile=how)
    layout = spec.of_kind("layer")[0]
    weights = param_views(torch.zeros(layout.num_elements), layout)
    counters.clear()
    shapes = set()
    for step in range(1, 7):
        for batch in step_microbatches(dataset, arrangement, step=step):
            hidden = torch.zeros(*batch.ids.shape, spec.hidden_size, requires_grad=True)
            assert batch.ids.shape[1] % 128 == 0
            positions = module.positions(batch.ids.shape[1], batch.lengths, packed=batch.packed)
            module.forward_only(layout, weights, hidden, positions)
            output = module.forward(layout, module.leaves(layout, weights), hidden, positions)
            torch.autograd.backward(output.sum())
            shapes.add(batch.ids.shape)
    assert len(shapes) > 2
    assert counters["stats"]["unique_graphs"] <= most


@pytest.mark.parametrize("case", CASES)
def test_layers_that_are_compiled_unasked_compute_as_they_are_written(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Those of every family, but for experts and scores that are bounded."""
    spec = spec_from_config(CONFIG_MAPPING[case.split("-")[0]](**SHARED, **CASES[case]).to_dict())
    on_gpu = TrainConfig(model="m", dataset="d", device="cuda", compute_dtype="bfloat16")
    assert not compiles_well(spec, replace(on_gpu, device="cpu"))
    if spec.experts is not None or spec.attention_softcap is not None:
        assert not compiles_well(spec, on_gpu)
        return
    assert compiles_well(spec, on_gpu)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    outputs = []
    for how in ("off", "dynamic"):
        module = LayerModule(spec, device=torch.device("cpu"), dtype=torch.float32, compile=how)
        positions = module.positions(24, torch.tensor([24, 17]), packed=False)
        torch.manual_seed(0)
        for layout in spec.of_kind("layer"):
            weights = param_views(torch.randn(layout.num_elements) / 8, layout)
            hidden = torch.randn(2, 24, spec.hidden_size)
            outputs.append(module.forward_only(layout, weights, hidden, positions))
    half = len(outputs) // 2
    for written, compiled in zip(outputs[:half], outputs[half:], strict=True):
        torch.testing.assert_close(compiled, written)


def test_a_layer_that_would_go_on_uncompiled_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond torch's limit of forms it would, without a word and with other bits."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr("headrace.engine.compiling._MAX_COMPILED", 2)
    spec = shape_spec("tiny", layers=1)
    module = LayerModule(spec, device=torch.device("cpu"), dtype=torch.float32, compile="static")
    layout = spec.of_kind("layer")[0]
    weights = param_views(torch.zeros(layout.num_elements), layout)

    def forward(num_tokens: int) -> None:
        hidden = torch.zeros(1, num_tokens, spec.hidden_size)
        positions = module.positions(num_tokens, torch.tensor([num_tokens]), packed=False)
        module.forward_only(layout, weights, hidden, positions)

    forward(8)
    forward(16)
    with pytest.raises(FailOnRecompileLimitHit):
        forward(24)
