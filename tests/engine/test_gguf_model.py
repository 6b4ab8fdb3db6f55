"""A GGUF file's metadata becomes the config that transformers would have had; or it is refused."""

import math
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from headrace.engine.gguf_names import ROPE_FACTORS
from headrace.engine.model_files import ModelError, UnknownFamily
from headrace.engine.source import read_model_spec
from tiny import make_tiny_llama
from tiny_gguf import write_gguf
from tiny_gguf_families import export_copy, write_case

LLAMA31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}  # fmt: skip


def tiny_gguf(tmp_path: Path, *, config: dict[str, Any] | None = None, **changes: Any) -> Path:
    model_dir = make_tiny_llama(tmp_path / "hf", tied=True, seed=5, layers=1, **(config or {}))
    return write_gguf(model_dir, tmp_path / "tiny.gguf", **changes)


def frequencies(config: LlamaConfig) -> tuple[torch.Tensor, float]:
    """Rotary frequencies and attention factor, by transformers' own function."""
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        steps = torch.arange(0, config.head_dim, 2) / config.head_dim
        return config.rope_parameters["rope_theta"] ** -steps, 1.0
    inverse, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    return inverse, factor


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_config_means_what_the_original_config_means(
    tmp_path: Path, tied: bool, bias: bool
) -> None:
    model_dir = make_tiny_llama(
        tmp_path / "hf", tied=tied, seed=5, bias=bias, rms_norm_eps=1e-5, head_dim=24,
        rope_parameters={"rope_type": "default", "rope_theta": 123456.0},
    )  # fmt: skip
    spec = read_model_spec(write_gguf(model_dir, tmp_path / "tiny.gguf"))
    original = LlamaForCausalLM.from_pretrained(model_dir).config.to_dict()
    ours = LlamaConfig(**spec.config).to_dict()
    for key in ("_name_or_path", "dtype"):
        original.pop(key), ours.pop(key)
    assert ours == original
    assert spec.records == read_model_spec(model_dir).records


def test_head_dim_follows_from_the_sizes_when_the_file_does_not_say_it(tmp_path: Path) -> None:
    lengths = dict.fromkeys(("llama.attention.key_length", "llama.attention.value_length"))
    spec = read_model_spec(tiny_gguf(tmp_path, metadata=lengths))
    assert spec.head_dim == 16 and "head_dim" not in spec.config


@pytest.mark.parametrize(
    ("metadata", "scaling"),
    [
        ({"llama.rope.scaling.type": "none"}, None),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.5},
            {"rope_type": "linear", "factor": 2.5},
        ),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 128,
            },
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        ),
    ],
)
def test_rope_scaling_of_the_metadata_reaches_transformers(
    tmp_path: Path, metadata: dict[str, Any], scaling: dict[str, Any] | None
) -> None:
    spec = read_model_spec(tiny_gguf(tmp_path, metadata=metadata))
    assert spec.config.get("rope_scaling") == scaling
    original = LlamaConfig.from_pretrained(tmp_path / "hf").to_dict()
    original.pop("rope_parameters")
    wanted = LlamaConfig(**original, rope_theta=10000.0, rope_scaling=scaling)
    got, wanted_got = frequencies(LlamaConfig(**spec.config)), frequencies(wanted)
    assert torch.equal(got[0], wanted_got[0]) and got[1] == wanted_got[1]


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_found_in_the_frequency_factors(tmp_path: Path, factor: float) -> None:
    scaling = {**LLAMA31, "factor": factor}
    rope: dict[str, Any] = {"rope_parameters": {**scaling, "rope_theta": 500000.0}, "head_dim": 64,
            "max_position_embeddings": 131072}  # fmt: skip
    model_dir = make_tiny_llama(tmp_path / "hf", tied=True, seed=5, layers=1, **rope)
    config = LlamaConfig.from_pretrained(model_dir)
    plain = 500000.0 ** -(torch.arange(0, 64, 2) / 64)
    factors = plain / frequencies(config)[0]  # what llama.cpp's converter stores
    path = write_gguf(model_dir, tmp_path / "tiny.gguf", tensors={ROPE_FACTORS: factors.numpy()})
    spec = read_model_spec(path)
    assert spec.config["rope_scaling"] == scaling
    torch.testing.assert_close(
        frequencies(LlamaConfig(**spec.config))[0], frequencies(config)[0], rtol=1e-6, atol=0
    )


def test_frequency_factors_of_one_are_no_scaling(tmp_path: Path) -> None:
    spec = read_model_spec(tiny_gguf(tmp_path, tensors={ROPE_FACTORS: [1.0] * 8}))
    assert "rope_scaling" not in spec.config


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "longrope"),
        ({"llama.rope.scaling.type": "linear"}, "llama.rope.scaling.factor is None"),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 2.0,
                "llama.rope.scaling.yarn_beta_fast": 8.0,
            },
            "yarn_beta_fast",
        ),
        ({"llama.rope.dimension_count": 8}, "16 elements with 8 rotary ones"),
        ({"llama.attention.value_length": 8}, "values of 8"),
        ({"llama.embedding_length": None}, "hidden_size is None"),
        ({"llama.block_count": 2}, "model.layers.1.self_attn.q_proj.weight is missing"),
        ({"llama.feed_forward_length": 64}, r"gate_proj.weight has shape \[128, 64\]"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon is None"),
        ({"llama.attention.head_count": [4]}, "num_attention_heads is"),
        ({"split.count": 3}, "one of 3 parts; join them first"),
    ],
)
def test_metadata_that_no_llama_has_is_refused(
    tmp_path: Path, metadata: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read_model_spec(tiny_gguf(tmp_path, metadata=metadata))


def test_other_frequency_factors_are_refused(tmp_path: Path) -> None:
    factors = [1.0 + math.sin(i) ** 2 for i in range(8)]
    with pytest.raises(ModelError, match="frequency factors other than Llama 3's"):
        read_model_spec(tiny_gguf(tmp_path, tensors={ROPE_FACTORS: factors}))


def test_tensor_that_no_llama_has_is_refused(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, tensors={"blk.0.attn_q_norm.weight": [1.0] * 16})
    with pytest.raises(ModelError, match="1 tensors are not part.*blk.0.attn_q_norm.weight"):
        read_model_spec(path)


def test_another_architecture_is_refused_with_those_that_are_read(tmp_path: Path) -> None:
    with pytest.raises(UnknownFamily, match="'gptj'; of GGUF files those of llama, qwen2, .* read"):
        read_model_spec(tiny_gguf(tmp_path, family="gptj"))


def test_experts_that_the_metadata_claims_and_the_file_lacks_are_refused(tmp_path: Path) -> None:
    claimed = {"llama.expert_count": 8, "llama.expert_used_count": 2}
    with pytest.raises(ModelError, match=r"layers.0.block_sparse_moe.experts.0.w1.* is missing"):
        read_model_spec(tiny_gguf(tmp_path, metadata=claimed))


def test_the_window_of_a_phi3_is_the_file_s_own(tmp_path: Path) -> None:
    """Others that convert such models write it; readers may leave it out."""
    model_dir = write_case(tmp_path / "hf", "phi3")
    path = export_copy(model_dir, tmp_path / "plain", dtype="float32")
    assert {kind.window for kind in read_model_spec(path).layer_kinds} == {None}
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "window.gguf", "phi3")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, inner = field.types[0], field.types[-1]
            writer.add_key_value(key, field.contents(), kind, inner)
    writer.add_uint32("phi3.attention.sliding_window", 8)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert {kind.window for kind in read_model_spec(tmp_path / "window.gguf").layer_kinds} == {8}


def test_two_gguf_files_in_a_directory_are_refused_by_name(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "model")
    (path.parent / "other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(ModelError, match=r"2 GGUF files \(other.gguf, tiny.gguf\)"):
        read_model_spec(path.parent)
    assert read_model_spec(path).num_layers == 1
