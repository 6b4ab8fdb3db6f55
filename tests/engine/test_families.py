"""Every family computes what transformers computes, and comes back out as it went in."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

from datasets import write_dataset
from headrace.engine import ModelError, read_model_spec
from headrace.engine.export import export_checkpoint
from headrace.engine.families import FAMILIES
from headrace.engine.hf_config import build_config
from headrace.engine.model import ROUTER
from headrace.engine.source import spec_from_config
from headrace.engine.weight_source import open_source
from reference import as_stored, read_checkpoint, relative_differences, train_reference
from runs import Run, assert_same_state, read_params, whole_params
from tiny_families import CASES, SHARED, WINDOW, write_family

LENGTHS = [24, 9, 17, 5, 30]  # most are longer than a window


def test_every_family_is_tried() -> None:
    assert {case.split("-")[0] for case in CASES} == set(FAMILIES)


@pytest.mark.parametrize("packing", ["on", "off"])
@pytest.mark.parametrize("case", CASES)
def test_loss_and_every_gradient_are_those_of_transformers(
    tmp_path: Path, case: str, packing: str
) -> None:
    """fp32, uneven microbatches, packed and padded; with beta1 = 0 the first moment is the
    gradient."""
    folder = write_family(tmp_path / "model", case)
    dataset = write_dataset(tmp_path / "data", LENGTHS, vocab=384)
    run = Run(
        tmp_path, folder, dataset,
        max_steps=1, batch_rows=5, microbatch_rows=2, beta1=0.0, clip_mode="none", packing=packing,
    )  # fmt: skip
    run.go()
    expected = train_reference(folder, dataset, run.config)
    assert run.metrics()[0]["loss"] == pytest.approx(expected.losses[0], abs=1e-5)
    gradients = read_params(run.config, "exp_avg")
    differences = relative_differences(gradients, expected.exp_avg)
    assert max(differences.values()) < 1e-5, differences


@pytest.mark.parametrize("case", ["gemma2", "phi3-window", "mixtral"])
def test_twenty_clipped_steps_are_those_of_plain_pytorch(tmp_path: Path, case: str) -> None:
    folder = write_family(tmp_path / "model", case)
    dataset = write_dataset(tmp_path / "data", LENGTHS, vocab=384)
    run = Run(
        tmp_path, folder, dataset,
        max_steps=20, batch_rows=5, microbatch_rows=2, max_grad_norm=0.5, weight_decay=0.1,
        export_dtype="float32",
    )  # fmt: skip
    result = run.go()
    expected = train_reference(folder, dataset, run.config)
    steps = run.metrics()
    assert [m["loss"] for m in steps] == pytest.approx(expected.losses, abs=1e-5)
    assert max(m["clip_factor"] for m in steps) < 1
    assert result.export_dir is not None
    weights = read_checkpoint(Path(result.export_dir))
    differences = relative_differences(weights, expected.state)
    assert max(differences.values()) < 1e-5, differences


@pytest.mark.parametrize("case", CASES)
def test_a_sharded_model_comes_back_with_the_same_logits(tmp_path: Path, case: str) -> None:
    source = write_family(tmp_path / "source", case, dtype="bfloat16", num_shards=3)
    spec = read_model_spec(source)
    with open_source(source, spec) as weights:
        export_checkpoint(
            tmp_path / "out", spec, assets_dir=source, dtype="bfloat16",
            shard_bytes=60_000, read_pieces=whole_params(spec, weights.read_record),
        )  # fmt: skip
    ids = torch.arange(2 * 24).view(2, 24)
    given, got = (AutoModelForCausalLM.from_pretrained(path) for path in (source, tmp_path / "out"))
    assert got.dtype is torch.bfloat16 and type(got) is type(given)
    assert torch.equal(got(ids).logits, given(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token == "<|im_end|>"
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == [FAMILIES[spec.family].architecture]


@pytest.mark.parametrize("case", CASES)
def test_layout_kinds_and_traits_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    """Names and shapes, matrices before vectors, and for each layer how far back a token sees."""
    folder = write_family(tmp_path, case)
    model = AutoModelForCausalLM.from_pretrained(folder)
    spec = read_model_spec(folder)
    found = {param.name: param.full_shape for record in spec.records for param in record.params}
    stored = as_stored(model, dict(model.named_parameters()))
    assert found == {name: tuple(values.shape) for name, values in stored.items()}
    for record in spec.of_kind("layer"):
        params = [one for one in record.params if not one.name.endswith(ROUTER)]
        assert params == list(record.params[: len(params)])  # a router comes last
        lengths = [len(param.shape) for param in params]
        assert lengths == sorted(lengths, reverse=True)
        assert record.num_matrix_elements == record.params[lengths.index(1)].offset
    names = getattr(model.config, "layer_types", None)
    if names is not None:
        assert [kind.name for kind in spec.layer_kinds] == names
    has_window = CASES[case].get("sliding_window") is not None
    windows = {kind.window for kind in spec.layer_kinds}
    assert (WINDOW in windows) == has_window and windows <= {WINDOW, None}
    assert spec.embedding_scale == getattr(model.model.embed_tokens, "scalar_embed_scale", 1.0)


@pytest.mark.parametrize("case", ["gemma2", "gemma3_text", "qwen2-window", "qwen3_moe"])
def test_placement_never_changes_a_bit_of_windows_or_experts(tmp_path: Path, case: str) -> None:
    folder = write_family(tmp_path / "model", case)
    dataset = write_dataset(tmp_path / "data", LENGTHS, vocab=384)
    common = {"max_steps": 3, "batch_rows": 3}
    plain = Run(tmp_path / "a", folder, dataset, clip_way="serial", recompute="all", **common)
    kept = Run(tmp_path / "b", folder, dataset, state_tier="host", recompute="none", **common)
    late = Run(tmp_path / "c", folder, dataset, clip_way="deferred", commit_every_steps=3,
               num_slots=2, **common)  # fmt: skip
    for run in (plain, kept, late):
        run.go()
    assert_same_state(kept.state(), plain.state())
    assert_same_state(late.state(), plain.state())


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((case, {"attention_dropout": 0.1}, "attention_dropout is 0.1") for case in FAMILIES),
    ("phi3", {"resid_pdrop": 0.1}, "resid_pdrop is 0.1"),
    (
        "phi3",
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        "wanted one of default, longrope",
    ),
    ("mistral", {"layer_types": ["sliding_attention"] * 3}, "layer_types is set"),
    ("qwen2", {"layer_types": ["sliding_attention"] * 3}, "use_sliding_window is false"),
    ("qwen2", {"layer_types": ["full_attention"]}, "wanted a list of 3 kinds"),
    ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "layer_types holds 'chunked_attention'"),
    ("qwen2", {"max_window_layers": "1"}, "max_window_layers is '1'"),
    ("qwen3", {"head_dim": None}, "head_dim is None"),
    ("gemma2", {"sliding_window": None}, "sliding_window is None"),
    ("gemma2", {"attn_logit_softcapping": -1.0}, "attn_logit_softcapping is -1.0"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    ("gemma3_text", {"attn_logit_softcapping": 5.0}, "attn_logit_softcapping is 5.0"),
    ("gemma3_text", {"rope_parameters": {"sliding_attention": {"rope_type": "spiral"}}}, "spiral"),
    ("olmo2", {"quantization_config": {"bits": 4}}, "quantization_config"),
    (
        "mixtral",
        {"output_router_logits": True, "router_aux_loss_coef": -1.0},
        "router_aux_loss_coef is -1.0",
    ),
    ("qwen3_moe", {"output_router_logits": 1}, "output_router_logits is 1"),
    ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise is 0.1"),
    ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok 5"),
    ("qwen3_moe", {"mlp_only_layers": ["1"]}, "mlp_only_layers"),
    ("qwen3_moe", {"num_local_experts": 10**6}, "wanted at most 4096 experts"),
]


@pytest.mark.parametrize(("family", "values", "message"), REFUSED)
def test_what_a_family_cannot_compute_is_refused_by_its_field(
    family: str, values: dict[str, Any], message: str
) -> None:
    config = CONFIG_MAPPING[family](**{**SHARED, **CASES[family]}).to_dict()
    with pytest.raises(ModelError, match=message):
        spec_from_config({**config, **values})


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_absent_values_mean_what_transformers_means_by_them(family: str) -> None:
    """A config with sizes alone: what is read of it is what transformers' class fills in."""
    sizes = [
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
    ]  # fmt: skip
    given = {key: SHARED[key] for key in sizes} | {"model_type": family, "head_dim": 24}
    given |= {key: value for key, value in CASES[family].items() if "expert" in key}
    given |= {"moe_intermediate_size": 32} if family == "qwen3_moe" else {}
    spec = spec_from_config(given)
    full = build_config(spec)
    again = spec_from_config({**full.to_dict(), "head_dim": 24})
    for field in ("tied", "layer_kinds", "records", "attention_softcap", "logit_softcap"):
        assert getattr(again, field) == getattr(spec, field), field
