"""A model in a GGUF file: its config in Hugging Face's words, and its tensors by their names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .families import FAMILIES, unknown_family
from .gguf_header import GgufHeader, read_gguf_header
from .gguf_names import ARCHITECTURES, ROPE_FACTORS, places
from .gguf_rope import read_float, rope_scaling
from .model import ModelSpec
from .model_files import ModelError
from .tensor_table import TensorEntry, check_tensors

# Types that the gguf package turns back into float32.
READABLE_TYPES = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0",
)  # fmt: skip
GEMMA3_WINDOWED_BASE = 10000.0  # of the rotary positions of layers with a window; no key says it
# Of Gemma's largest models, by number of layers: scores are scaled by the width of a hidden head.
GEMMA_LARGEST = {"gemma2": 46, "gemma3": 62}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufModel:
    """A model and the header it came from. `entries` go by Hugging Face name."""

    header: GgufHeader
    spec: ModelSpec
    entries: dict[str, TensorEntry]


def read_gguf_model(path: Path, max_record_elements: int = 0) -> GgufModel:
    """The model of a GGUF file, its tensors checked; UnknownFamily or ModelError."""
    header = read_gguf_header(path)
    config = gguf_config(header)
    spec = FAMILIES[config["model_type"]].spec(config, max_record_elements)
    entries = entries_by_checkpoint_name(header, spec)
    check_tensors(spec, entries, READABLE_TYPES, path)
    return GgufModel(header=header, spec=spec, entries=entries)


def entries_by_checkpoint_name(header: GgufHeader, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors under Hugging Face's names; those without one keep theirs.

    An expert's matrix is a part of the stack that the file has of them.
    """
    left = {name: entry for name, entry in header.entries.items() if name != ROPE_FACTORS}
    found: dict[str, TensorEntry] = {}
    for name, place in places(spec).items():
        entry = header.entries.get(place.name)
        if entry is None:
            continue
        left.pop(place.name, None)
        found[name] = entry if place.expert is None else _of_stack(entry, place.expert)
    return {**left, **found}


def _of_stack(entry: TensorEntry, expert: int) -> TensorEntry:
    if len(entry.shape) != 3 or expert >= entry.shape[0]:
        raise ModelError(
            f"{entry.path}: tensor {entry.name} has shape {list(entry.shape)}, which is no stack "
            f"of more than {expert} experts"
        )
    size = entry.num_bytes // entry.shape[0]
    start = entry.start + expert * size
    return replace(entry, shape=entry.shape[1:], start=start, num_bytes=size)


def gguf_config(header: GgufHeader) -> dict[str, Any]:
    """A config.json for the model, as transformers' config of its family reads it."""
    values, where = header.metadata, header.path
    arch = values.get("general.architecture", "")
    if arch not in ARCHITECTURES.values():
        known = ", ".join(dict.fromkeys(ARCHITECTURES.values()))
        raise unknown_family(
            f"{where}: its architecture is {arch!r}; of GGUF files those of {known} are read: "
            f"take the model's safetensors"
        )
    if (num_parts := values.get("split.count", 0)) not in (0, 1):
        raise ModelError(
            f"{where} is one of {num_parts} parts; join them first: llama-gguf-split --merge"
        )
    config = {
        **_common(header, arch),
        "rope_theta": read_float(values, f"{arch}.rope.freq_base", where, 10000.0),
        "dtype": "bfloat16",
        **token_ids(values),
    }
    if (head_dim := values.get(f"{arch}.attention.key_length")) is not None:
        config["head_dim"] = head_dim
    if (scaling := rope_scaling(header, config)) is not None:
        config["rope_scaling"] = scaling
    config |= _FAMILY_VALUES[arch](header, config)
    config["architectures"] = [FAMILIES[config["model_type"]].architecture]
    _check_rotary_size(values, arch, config, where)
    return config


def _common(header: GgufHeader, arch: str) -> dict[str, Any]:
    values = header.metadata
    heads = values.get(f"{arch}.attention.head_count")
    return {
        "model_type": arch,
        "hidden_act": "silu",
        "hidden_size": values.get(f"{arch}.embedding_length"),
        "intermediate_size": values.get(f"{arch}.feed_forward_length"),
        "num_hidden_layers": values.get(f"{arch}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": values.get(f"{arch}.attention.head_count_kv", heads),
        "max_position_embeddings": values.get(f"{arch}.context_length"),
        "vocab_size": _num_rows(header, "token_embd.weight"),
        "rms_norm_eps": read_float(
            values, f"{arch}.attention.layer_norm_rms_epsilon", header.path
        ),
        "tie_word_embeddings": "output.weight" not in header.entries,
    }  # fmt: skip


def _llama(header: GgufHeader, config: dict[str, Any]) -> dict[str, Any]:
    values = header.metadata
    if values.get("llama.expert_count", 0):
        return {
            "model_type": "mixtral",
            "num_local_experts": values["llama.expert_count"],
            "num_experts_per_tok": values.get("llama.expert_used_count"),
            "sliding_window": None,
        }
    return {
        "attention_bias": "blk.0.attn_q.bias" in header.entries,
        "mlp_bias": "blk.0.ffn_up.bias" in header.entries,
    }


def _plain(header: GgufHeader, config: dict[str, Any]) -> dict[str, Any]:
    return {}


def _qwen3moe(header: GgufHeader, config: dict[str, Any]) -> dict[str, Any]:
    """Readers of the architecture have experts in every layer, weighted to a sum of one."""
    values = header.metadata
    return {
        "model_type": "qwen3_moe",
        "num_experts": values.get("qwen3moe.expert_count"),
        "num_experts_per_tok": values.get("qwen3moe.expert_used_count"),
        "moe_intermediate_size": values.get("qwen3moe.expert_feed_forward_length"),
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    }


def _gemma2(header: GgufHeader, config: dict[str, Any]) -> dict[str, Any]:
    values, where = header.metadata, header.path
    return {
        **_gemma(header, config),
        "attn_logit_softcapping": read_float(values, "gemma2.attn_logit_softcapping", where, 50.0),
        "final_logit_softcapping": read_float(
            values, "gemma2.final_logit_softcapping", where, 30.0
        ),
    }


def _gemma3(header: GgufHeader, config: dict[str, Any]) -> dict[str, Any]:
    scaling = config.pop("rope_scaling", {"rope_type": "default"})
    return {
        **_gemma(header, config),
        "model_type": "gemma3_text",
        "rope_parameters": {
            "full_attention": {**scaling, "rope_theta": config.pop("rope_theta")},
            "sliding_attention": {"rope_type": "default", "rope_theta": GEMMA3_WINDOWED_BASE},
        },
    }


def _gemma(header: GgufHeader, config: dict[str, Any]) -> dict[str, Any]:
    arch = config["model_type"]
    head_dim = config.get("head_dim")
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": header.metadata.get(f"{arch}.attention.sliding_window"),
        "query_pre_attn_scalar": gemma_scalar(arch, {**config, "head_dim": head_dim}),
    }


def gemma_scalar(arch: str, config: Mapping[str, Any]) -> Any:
    """What readers of Gemma's files take the root of to scale scores."""
    if config["num_hidden_layers"] == GEMMA_LARGEST[arch]:
        return config["hidden_size"] // config["num_attention_heads"]
    return config["head_dim"]


def _phi3(header: GgufHeader, config: dict[str, Any]) -> dict[str, Any]:
    window = header.metadata.get("phi3.attention.sliding_window") or None
    found: dict[str, Any] = {"sliding_window": window, "pad_token_id": config.get("pad_token_id")}
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    rotary = header.metadata.get("phi3.rope.dimension_count")
    if all(type(value) is int and value > 0 for value in (heads, hidden, rotary)):
        found["partial_rotary_factor"] = rotary / (config.get("head_dim") or hidden // heads)
    return found


_FAMILY_VALUES: dict[str, Callable[[GgufHeader, dict[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _plain,
    "qwen3": _plain,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "olmo2": _plain,
}


def token_ids(values: Mapping[str, Any]) -> dict[str, int]:
    """Beginning, end and padding token by the names of a config.json; absent ones left out."""
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    found = {key: values.get(f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}
    return {f"{key}_token_id": value for key, value in found.items() if value is not None}


def _check_rotary_size(
    values: Mapping[str, Any], arch: str, config: Mapping[str, Any], where: Path
) -> None:
    head_dim = FAMILIES[config["model_type"]].spec(config, 1).head_dim
    rotary, value_length = (
        values.get(f"{arch}.{key}", head_dim)
        for key in ("rope.dimension_count", "attention.value_length")
    )
    if (rotary != head_dim and arch != "phi3") or value_length != head_dim:
        raise ModelError(
            f"{where}: heads of {head_dim} elements with {rotary} rotary ones and values of "
            f"{value_length}; this architecture has the same number of each"
        )


def _num_rows(header: GgufHeader, name: str) -> int:
    if name not in header.entries:
        raise ModelError(f"{header.path}: tensor {name} is missing; it holds no whole model")
    return header.entries[name].shape[0]
