"""A mixture of experts: those that no token meets, adapters beside it, what is counted."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from datasets import write_dataset
from headrace.engine import TrainConfig, read_model_spec
from headrace.engine.flops import layer_flops
from headrace.engine.lora import projections
from headrace.engine.methods import method_spec
from headrace.engine.source import spec_from_config
from headrace.engine.state_record import coded_elements
from reference import relative_differences, train_reference
from runs import Run, read_params
from tiny_families import write_family

CONFIG = TrainConfig(model="m", dataset="d")


def write_one_sided(model_dir: Path) -> Path:
    """A mixture whose routers choose experts 0 and 1 for nearly all tokens, and never 5."""
    write_family(model_dir, "qwen3_moe")
    path = model_dir / "model.safetensors"
    tensors = load_file(path)
    for name, values in tensors.items():
        if name.endswith("mlp.gate.weight"):
            values[2:] = 0.01 * values[2:]
            values[5] = 0
    save_file(tensors, path, metadata={"format": "pt"})
    return model_dir


def test_an_expert_that_no_token_meets_is_updated_as_plain_pytorch_updates_it(
    tmp_path: Path,
) -> None:
    """Its gradient is zero, not absent: moments fade, and weight decay acts on its weights."""
    folder = write_one_sided(tmp_path / "model")
    dataset = write_dataset(tmp_path / "data", [3, 4], vocab=384)
    run = Run(
        tmp_path, folder, dataset,
        max_steps=3, batch_rows=1, microbatch_rows=1, weight_decay=0.5, learning_rate=1e-2,
    )  # fmt: skip
    run.go()
    expected = train_reference(folder, dataset, run.config)
    moments = read_params(run.config, "exp_avg_sq")
    unmet = [name for name, values in moments.items() if not values.any()]
    assert any(".experts." in name for name in unmet) and len(unmet) < len(moments)
    assert all(not expected.exp_avg_sq[name].any() for name in unmet)
    met = {name: values for name, values in moments.items() if values.any()}
    wanted = {name: expected.exp_avg_sq[name] for name in met}
    assert max(relative_differences(met, wanted).values()) < 1e-3
    weights = read_params(run.config, "weight_hi")
    for name in unmet:
        wanted_weight = expected.state[name]
        torch.testing.assert_close(weights[name].float(), wanted_weight, rtol=8e-3, atol=1e-6)


@pytest.mark.parametrize("case", ["mixtral", "qwen3_moe"])
def test_adapters_are_for_all_but_the_router_which_is_never_coded(
    tmp_path: Path, case: str
) -> None:
    spec = read_model_spec(write_family(tmp_path, case))
    layer = spec.of_kind("layer")[0]
    names = {name.rsplit(".", 1)[-1] for name in projections(layer)}
    assert spec.experts is not None
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", *spec.experts.projections}
    settings = replace(CONFIG, method="lora", lora_export="merged", frozen_format="nf4")
    coded = method_spec(spec, settings).of_kind("layer")[0]
    (router,) = [param for param in coded.params if param.name.endswith(".gate.weight")]
    assert router.offset >= coded_elements(coded)
    experts = [param for param in coded.params if ".experts." in param.name]
    assert all(param.offset < coded_elements(coded) for param in experts)


def test_a_token_is_computed_with_the_experts_that_it_meets() -> None:
    config = {
        "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
        "max_position_embeddings": 64, "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    spec = spec_from_config(config)
    (layer,) = spec.of_kind("layer")
    attention, experts, router = 4 * 64 * 64, 2 * 3 * 64 * 128, 8 * 64
    scores = 2 * 1 * 64
    counted = layer_flops(spec, layer, tokens=1, row_tokens=1)
    assert counted == 2 * (attention + experts + router) + scores
    assert spec.intermediate_size == 2 * 128
