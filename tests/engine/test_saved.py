"""What a layer's graph holds is what the plan counts for it, in every family."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

from headrace.engine import TrainConfig
from headrace.engine.config import Compile
from headrace.engine.layer import LayerModule, param_views
from headrace.engine.methods import method_spec
from headrace.engine.model import ModelSpec
from headrace.engine.saved import saved_token_bytes, saves_input
from headrace.engine.source import spec_from_config
from tiny_families import CASES, SHARED

ROWS, TOKENS = 2, 48
CONFIG = TrainConfig(model="m", dataset="d")
# Counted to the byte, and with a window but for its mask.
PLAIN, WINDOWED = ("llama", "mistral", "qwen2"), ("mistral-window", "qwen2-window")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("case", CASES)
def test_a_graph_holds_no_more_than_is_counted_and_not_far_less(
    case: str, packed: bool, dtype: str
) -> None:
    config_class = CONFIG_MAPPING[case.split("-")[0]]
    spec = spec_from_config(config_class(**SHARED, **CASES[case]).to_dict())
    held = held_bytes(spec, getattr(torch, dtype), packed=packed)
    chosen: dict[str, Any] = {"compute_dtype": dtype, "packing": "on" if packed else "off"}
    counted = ROWS * TOKENS * saved_token_bytes(spec, replace(CONFIG, **chosen), TOKENS)
    least = 1.0 if case in PLAIN else 0.97 if case in WINDOWED else 0.75
    assert least * counted <= held <= counted


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("case", "packed", "dynamic"),
    [
        ("llama", True, True),
        *((case, False, False) for case in ("llama", "qwen3", "gemma3_text", "phi3")),
    ],
)
def test_a_compiled_graph_holds_what_is_counted(
    case: str, packed: bool, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is saved is chosen before any kernel is made: without those the test takes seconds.

    Nor does it matter for that whether lengths are symbols, as in a run, which takes five times as
    long to trace; so they are in one case alone.
    """
    partition = {"backend": "aot_eager_decomp_partition", "dynamic": dynamic}
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **given: compile_(f, **{**given, **partition}))
    spec = spec_from_config(CONFIG_MAPPING[case.split("-")[0]](**SHARED, **CASES[case]).to_dict())
    held = held_bytes(spec, torch.bfloat16, packed=packed, compile="dynamic")
    chosen: dict[str, Any] = {"packing": "on" if packed else "off"}
    settings = replace(CONFIG, compute_dtype="bfloat16", compile="dynamic", **chosen)
    mask = ROWS * TOKENS * 2 * ROWS * TOKENS if packed else 0  # counted with the masks
    counted = ROWS * TOKENS * saved_token_bytes(spec, settings, ROWS * TOKENS) + mask
    assert 0.85 * counted < held <= counted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_input_is_saved_where_it_is_counted_so(dtype: str) -> None:
    # Kept layers were once planned without the input that each of them has beside its graph.
    spec = spec_from_config(CONFIG_MAPPING["llama"](**SHARED, **CASES["llama"]).to_dict())
    of_type: torch.dtype = getattr(torch, dtype)
    module = LayerModule(spec, device=torch.device("cpu"), dtype=of_type, compile="off")
    layout = spec.of_kind("layer")[0]
    flat = torch.randn(layout.num_elements, dtype=of_type)
    hidden = torch.randn(1, TOKENS, spec.hidden_size, dtype=of_type).requires_grad_()
    saved: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.untyped_storage().data_ptr())
        return tensor

    positions = module.positions(TOKENS, torch.tensor([TOKENS]), packed=False)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module.forward(layout, module.leaves(layout, param_views(flat, layout)), hidden, positions)
    chosen: dict[str, Any] = {"compute_dtype": dtype, "compile": "off"}
    settings = replace(CONFIG, **chosen)
    assert (hidden.untyped_storage().data_ptr() in saved) == saves_input(spec, settings)


@pytest.mark.parametrize("case", ["llama", "mixtral", "qwen3_moe"])
def test_adapters_hold_no_more_than_is_counted(case: str) -> None:
    """Of experts those that a token passes, though all have adapters."""
    spec = spec_from_config(CONFIG_MAPPING[case](**SHARED, **CASES[case]).to_dict())
    settings = replace(CONFIG, method="lora", lora_rank=32, lora_export="merged")
    tuned = method_spec(spec, settings)
    held = held_bytes(tuned, torch.float32, packed=True)
    assert held <= ROWS * TOKENS * saved_token_bytes(tuned, settings, TOKENS)


def held_bytes(
    spec: ModelSpec, dtype: torch.dtype, *, packed: bool, compile: Compile = "off"
) -> int:
    """Bytes that the graph of the greediest layer keeps, weights and positions left out."""
    module = LayerModule(spec, device=torch.device("cpu"), dtype=dtype, compile=compile)
    shape = (1, ROWS * TOKENS) if packed else (ROWS, TOKENS)
    positions = module.positions(shape[1], torch.tensor([TOKENS] * ROWS), packed=packed)
    most = 0
    for layout in spec.of_kind("layer"):
        flat = torch.randn(layout.num_elements).to(dtype)
        given = param_views(flat, layout)
        if (beside := spec.beside.get(layout.name)) is not None:
            given |= param_views(torch.randn(beside.num_elements).to(dtype), beside)
        weights = module.leaves(layout, given)
        hidden = torch.randn(*shape, spec.hidden_size).to(dtype).requires_grad_()
        held: dict[int, int] = {}

        def keep(tensor: torch.Tensor, held: dict[int, int] = held) -> torch.Tensor:
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = module.forward(layout, weights, hidden, positions)
        for weight in weights.values():
            held.pop(weight.untyped_storage().data_ptr(), None)
        for cos, sin, _ in positions.values():
            held.pop(cos.untyped_storage().data_ptr(), None)
            held.pop(sin.untyped_storage().data_ptr(), None)
        most = max(most, sum(held.values()))
        del output
    return most
