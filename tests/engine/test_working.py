"""What a layer's backward takes at its peak is what the plan counts for it."""

import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import CONFIG_MAPPING

from headrace.engine import TrainConfig
from headrace.engine.config import Compile
from headrace.engine.layer import LayerModule, param_views
from headrace.engine.layer_graph import backward, forward_graph
from headrace.engine.methods import method_spec
from headrace.engine.model import ModelSpec
from headrace.engine.sizes import Sizes
from headrace.engine.source import spec_from_config
from tiny_families import CASES, SHARED

# Wide enough that weights are what they are in a real layer; with fewer tokens than 64 products of
# bf16 copy their weights on a processor.
WIDE = {
    "hidden_size": 256, "intermediate_size": 896, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 32,
}  # fmt: skip
# What a bounded score takes is counted as if each of its tensors were there at once, and a
# mixture's tokens as if they met their experts at once.
LEAST_SHARE = {"gemma2": 0.6, "mixtral": 0.6}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tokens", [64, 128, 256, 1024])
@pytest.mark.parametrize("case", ["llama", "qwen3", "gemma2", "gemma3_text", "phi3", "mixtral"])
def test_backward_takes_no_more_than_is_counted_and_not_far_less(
    case: str, tokens: int, dtype: str
) -> None:
    # Gradients of weights were once not counted: of few tokens they are most of what is there.
    config = CONFIG_MAPPING[case](**{**SHARED, **CASES[case], **WIDE})
    spec = spec_from_config(config.to_dict())
    settings = settings_for(dtype)
    counted = Sizes.of(spec, settings, tokens).working_bytes
    taken = peak_bytes(spec, tokens, getattr(torch, dtype))
    assert LEAST_SHARE.get(case, 0.7) * counted <= taken <= counted


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
@pytest.mark.filterwarnings("ignore")  # the compiler imports what its own version deprecates
@pytest.mark.parametrize("tokens", [64, 256])
def test_a_compiled_backward_takes_no_more_than_is_counted_and_not_far_less(tokens: int) -> None:
    config = CONFIG_MAPPING["llama"](**{**SHARED, **CASES["llama"], **WIDE})
    spec, plain = spec_from_config(config.to_dict()), settings_for("float32")
    counted = Sizes.of(spec, replace(plain, compile="static"), tokens).working_bytes
    assert 0.7 * counted <= peak_bytes(spec, tokens, torch.float32, compile="static") <= counted


def test_what_is_frozen_has_no_gradients() -> None:
    config = CONFIG_MAPPING["llama"](**{**SHARED, **CASES["llama"], **WIDE})
    settings = settings_for("float32", method="lora", lora_rank=4)
    spec = method_spec(spec_from_config(config.to_dict()), settings)
    counted = Sizes.of(spec, settings, 16).working_bytes
    assert 0.7 * counted <= peak_bytes(spec, 16, torch.float32) <= counted


def settings_for(dtype: str, **others: Any) -> TrainConfig:
    """One row at a time, nothing compiled."""
    chosen: dict[str, Any] = {"compute_dtype": dtype, "packing": "off", "compile": "off", **others}
    return TrainConfig(model="m", dataset="d", batch_rows=1, microbatch_rows=1, **chosen)


def peak_bytes(spec: ModelSpec, tokens: int, dtype: torch.dtype, compile: Compile = "off") -> int:
    """What forward and backward of a layer allocate at once, as torch's profiler counts it."""
    module = LayerModule(spec, device=torch.device("cpu"), dtype=dtype, compile=compile)
    positions = module.positions(tokens, torch.tensor([tokens]), packed=False)
    layout = spec.of_kind("layer")[0]
    given: dict[str, torch.Tensor] = {}
    for record in filter(None, [layout, spec.beside.get(layout.name)]):
        given |= param_views(torch.randn(record.num_elements).to(dtype), record)
    weights = module.leaves(layout, given)
    hidden = torch.randn(1, tokens, spec.hidden_size).to(dtype)
    grad = torch.randn_like(hidden)
    if compile != "off":
        backward(forward_graph(module, layout, weights, hidden, positions), weights, grad)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        graph = forward_graph(module, layout, weights, hidden, positions)
        grads = backward(graph, weights, grad)
        del graph, grads
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    now = most = 0
    for _, change in sorted(changes, key=lambda each: each[0]):
        now += change
        most = max(most, now)
    return most
