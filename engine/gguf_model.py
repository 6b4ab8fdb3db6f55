"""A Llama in a GGUF file: its config in Hugging Face's words, and its tensors by their names."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import pi
from pathlib import Path
from typing import Any

from .families import unknown_family
from .gguf_header import GgufHeader, read_gguf_header
from .llama import llama_spec
from .model import EMBEDDING, HEAD, NORM, ModelSpec
from .model_files import ModelError
from .tensor_table import TensorEntry, check_tensors

# Types that the gguf package turns back into float32.
READABLE_TYPES = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0",
)  # fmt: skip
ROPE_FACTORS = "rope_freqs.weight"
_TABLES = {"token_embd.weight": EMBEDDING, "output_norm.weight": NORM, "output.weight": HEAD}
_LAYER_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufModel:
    """A model and the header it came from. `entries` go by Hugging Face name."""

    header: GgufHeader
    spec: ModelSpec
    entries: dict[str, TensorEntry]


def read_gguf_model(path: Path, max_record_elements: int = 0) -> GgufModel:
    """The model of a GGUF file, its tensors checked; UnknownFamily or ModelError."""
    header = read_gguf_header(path)
    entries = entries_by_checkpoint_name(header)
    spec = llama_spec(gguf_config(header), max_record_elements)
    check_tensors(spec, entries, READABLE_TYPES, path)
    return GgufModel(header=header, spec=spec, entries=entries)


def entries_by_checkpoint_name(header: GgufHeader) -> dict[str, TensorEntry]:
    """The tensors under Hugging Face's names; those without one keep theirs."""
    return {
        _checkpoint_name(name): entry
        for name, entry in header.entries.items()
        if name != ROPE_FACTORS
    }


def _checkpoint_name(name: str) -> str:
    if name in _TABLES:
        return _TABLES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_PARTS:
        return f"model.layers.{parts[1]}.{_LAYER_PARTS[parts[2]]}.{parts[3]}"
    return name


def gguf_config(header: GgufHeader) -> dict[str, Any]:
    """A config.json for the model, as transformers' LlamaConfig reads it."""
    values, where = header.metadata, header.path
    family = values.get("general.architecture")
    if family != "llama":
        raise unknown_family(
            f"{where}: its architecture is {family!r}; of GGUF files those of llama are read: "
            f"take the model's safetensors"
        )
    _check_supported(values, where)
    heads = values.get("llama.attention.head_count")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": values.get("llama.embedding_length"),
        "intermediate_size": values.get("llama.feed_forward_length"),
        "num_hidden_layers": values.get("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": values.get("llama.attention.head_count_kv", heads),
        "max_position_embeddings": values.get("llama.context_length"),
        "vocab_size": _num_rows(header, "token_embd.weight"),
        "rms_norm_eps": _float(values, "llama.attention.layer_norm_rms_epsilon", where),
        "rope_theta": _float(values, "llama.rope.freq_base", where, 10000.0),
        "tie_word_embeddings": "output.weight" not in header.entries,
        "attention_bias": "blk.0.attn_q.bias" in header.entries,
        "mlp_bias": "blk.0.ffn_up.bias" in header.entries,
        "dtype": "bfloat16",
        **token_ids(values),
    }
    if (head_dim := values.get("llama.attention.key_length")) is not None:
        config["head_dim"] = head_dim
    if (scaling := _rope_scaling(header, config)) is not None:
        config["rope_scaling"] = scaling
    _check_rotary_size(values, llama_spec(config, 1).head_dim, where)
    return config


def token_ids(values: Mapping[str, Any]) -> dict[str, int]:
    """Beginning, end and padding token by the names of a config.json; absent ones left out."""
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    found = {key: values.get(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}
    return {f"{key}_token_id": value for key, value in found.items() if value is not None}


def _check_supported(values: Mapping[str, Any], where: Path) -> None:
    if (num_parts := values.get("split.count", 0)) not in (0, 1):
        raise ModelError(
            f"{where} is one of {num_parts} parts; join them first: llama-gguf-split --merge"
        )
    if values.get("llama.expert_count", 0) != 0:
        raise unknown_family(f"{where}: a mixture of experts")


def _check_rotary_size(values: Mapping[str, Any], head_dim: int, where: Path) -> None:
    rotary, value_length = (
        values.get(key, head_dim)
        for key in ("llama.rope.dimension_count", "llama.attention.value_length")
    )
    if rotary != head_dim or value_length != head_dim:
        raise ModelError(
            f"{where}: heads of {head_dim} elements with {rotary} rotary ones and values of "
            f"{value_length}; a Llama has the same number of each"
        )


def _num_rows(header: GgufHeader, name: str) -> int:
    if name not in header.entries:
        raise ModelError(f"{header.path}: tensor {name} is missing; it holds no whole model")
    return header.entries[name].shape[0]


def _float(values: Mapping[str, Any], key: str, where: Path, default: float | None = None) -> float:
    """A float32 of the metadata, as the shortest decimal that means the same float32."""
    value = values.get(key, default)
    if not isinstance(value, float):
        raise ModelError(f"{where}: {key} is {value!r}; wanted a number")
    decimals = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((d for d in decimals if _float32(d) == _float32(value)), value)


def _float32(value: float) -> bytes:
    return struct.pack("<f", value)


def _rope_scaling(header: GgufHeader, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The rope_scaling of the config: from metadata, or from Llama 3's frequency factors."""
    values, where = header.metadata, header.path
    if ROPE_FACTORS in header.entries:
        return _llama3_scaling(_read_factors(header), config, where)
    kind = values.get("llama.rope.scaling.type", "none")
    if kind == "none":
        return None
    tuned = [key for key in values if key.startswith("llama.rope.scaling.yarn_")]
    if kind not in ("linear", "yarn") or tuned or "llama.rope.scaling.attn_factor" in values:
        raise ModelError(
            f"{where}: rope scaling {kind!r} {tuned or ''}; wanted none, linear, plain yarn or "
            f"Llama 3's; use the model's safetensors, which state it in full"
        )
    scaling = {"rope_type": kind, "factor": _float(values, "llama.rope.scaling.factor", where)}
    original = values.get("llama.rope.scaling.original_context_length")
    if kind == "yarn" and original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _read_factors(header: GgufHeader) -> list[float]:
    entry = header.entries[ROPE_FACTORS]
    if entry.dtype != "F32" or len(entry.shape) != 1:
        raise ModelError(f"{header.path}: {ROPE_FACTORS} is {entry.dtype} {list(entry.shape)}")
    with entry.path.open("rb") as file:
        file.seek(entry.start)
        return list(struct.unpack(f"<{entry.shape[0]}f", file.read(entry.num_bytes)))


def _llama3_scaling(
    factors: list[float], config: Mapping[str, Any], where: Path
) -> dict[str, Any] | None:
    """Llama 3.1 to 3.3 differ in the factor alone; the file keeps only the resulting factors."""
    if all(factor == 1 for factor in factors):
        return None
    scaling = {
        "rope_type": "llama3",
        "factor": round(max(factors), 4),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    wanted = [
        llama3_factor(scaling, config["rope_theta"] ** (i / len(factors)))
        for i in range(len(factors))
    ]
    if any(abs(a - b) > 1e-3 * b for a, b in zip(factors, wanted, strict=True)):
        raise ModelError(
            f"{where}: {ROPE_FACTORS} holds frequency factors other than Llama 3's; use the "
            f"model's safetensors, whose config states the rope scaling"
        )
    return scaling


def llama3_factor(scaling: Mapping[str, Any], period: float) -> float:
    """What Llama 3.1 divides the rotary frequency 1 / `period` by (Llama 3.1's model card code).

    Wavelengths below original / high_freq_factor keep their frequency, those above original /
    low_freq_factor are stretched by `factor`, and those between are interpolated.
    """
    turns = scaling["original_max_position_embeddings"] / (2 * pi * period)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
    return float(1 / ((1 - smooth) / scaling["factor"] + smooth))
