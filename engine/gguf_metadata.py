"""What a GGUF file says of a model, in the keys that llama.cpp reads; or why it cannot say it.

A reader knows more of an architecture than its files tell: which layers have a window, how scores
are scaled. A model that differs from that would be read as another one, so it is refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .gguf_codec import TYPES
from .gguf_header import load_gguf_package
from .gguf_model import GEMMA3_WINDOWED_BASE, gemma_scalar
from .gguf_names import ARCHITECTURES, places
from .gguf_rope import LLAMA3, llama3_factor
from .gguf_vocabulary import token_metadata
from .hf_config import build_config
from .model import ModelSpec
from .model_files import ModelError

_ROPE_TUNING = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


def file_metadata(spec: ModelSpec, *, assets_dir: Path, dtype: str, name: str) -> dict[str, Any]:
    """Every key of a file that calls the model `name`; ValueError or ModelError when none can be.

    `assets_dir` holds the tokenizer.
    """
    if dtype not in TYPES:
        raise ValueError(f"GGUF dtype is {dtype!r}; wanted one of {', '.join(TYPES)}")
    places(spec)
    return _model(spec, dtype, name) | token_metadata(
        assets_dir, vocab_size=spec.vocab_size, max_tokens=spec.max_positions
    )


def _model(spec: ModelSpec, dtype: str, name: str) -> dict[str, Any]:
    """Every key but the tokenizer's."""
    arch = ARCHITECTURES[spec.family]
    config = build_config(spec)
    _check_family(spec, config, arch)
    values = {
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "attention.value_length": spec.head_dim,
        "block_count": spec.num_layers,
        "context_length": spec.max_positions,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "vocab_size": spec.vocab_size,
        **_rope(spec, config, arch),
        **_of_family(spec, config),
    }
    gguf = load_gguf_package()
    return {
        "general.type": "model",
        "general.name": name,
        "general.file_type": int(gguf.LlamaFileType[TYPES[dtype][1]]),
        "general.quantization_version": int(gguf.GGML_QUANT_VERSION),
        **{f"{arch}.{key}": value for key, value in values.items()},
    }


def rope_factors(spec: ModelSpec) -> list[float]:
    """What Llama 3 divides each rotary frequency by; empty for models that scale otherwise."""
    rope = _full_rope(build_config(spec).rope_parameters)
    if rope["rope_type"] != "llama3":
        return []
    half = spec.head_dim // 2
    return [llama3_factor(rope, rope["rope_theta"] ** (i / half)) for i in range(half)]


def _full_rope(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary parameters of layers without a window, where each kind has its own."""
    found: Mapping[str, Any] = parameters.get("full_attention", parameters)
    return found


def _rope(spec: ModelSpec, config: Any, arch: str) -> dict[str, Any]:
    rope = _full_rope(config.rope_parameters)
    kind = rope["rope_type"]
    share = rope.get("partial_rotary_factor", 1.0)
    if share != 1.0 and arch != "phi3":
        _refuse(spec, f"rotary positions on {share:g} of each head")
    values: dict[str, Any] = {
        "rope.dimension_count": int(spec.head_dim * share),
        "rope.freq_base": float(rope["rope_theta"]),
    }
    tuned = [key for key in _ROPE_TUNING if rope.get(key) is not None]
    if kind not in ("default", "linear", "yarn", "llama3") or tuned:
        _refuse(spec, f"rope scaling {kind!r} {', '.join(tuned)}".rstrip())
    if kind == "llama3" and (arch != "llama" or any(rope[k] != v for k, v in LLAMA3.items())):
        _refuse(spec, "Llama 3's rope scaling with other bounds than Llama 3 has")
    if kind in ("linear", "yarn"):
        values |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if kind == "yarn":
        original = rope.get("original_max_position_embeddings") or spec.max_positions
        values["rope.scaling.original_context_length"] = int(original)
    return values


def _check_family(spec: ModelSpec, config: Any, arch: str) -> None:
    gemma = arch.startswith("gemma")
    activation = config.hidden_activation if gemma else config.hidden_act
    if activation not in (("gelu_pytorch_tanh",) if gemma else ("silu", "swish")):
        _refuse(spec, f"the activation {activation!r}")
    if gemma:
        _check_gemma(spec, config, arch)
        return
    window = min(kind.window or spec.max_positions for kind in spec.layer_kinds)
    if window < spec.max_positions:
        _refuse(
            spec,
            f"a window of {window} tokens; readers would attend to all {spec.max_positions}. If "
            f"no text is longer than the window, set sliding_window to null in config.json",
        )
    if arch == "qwen3moe" and not config.norm_topk_prob:
        _refuse(spec, "weights of experts that do not sum to one")


def _check_gemma(spec: ModelSpec, config: Any, arch: str) -> None:
    every = {"gemma2": 2, "gemma3": 6}[arch]
    wanted = [bool((i + 1) % every) for i in range(spec.num_layers)]
    if [kind.window is not None for kind in spec.layer_kinds] != wanted:
        _refuse(spec, f"windows in other layers than all but every {every}th")
    scalar = gemma_scalar(arch, {**spec.config, **_sizes(spec)})
    if config.query_pre_attn_scalar != scalar:
        _refuse(spec, f"query_pre_attn_scalar {config.query_pre_attn_scalar} (not {scalar})")
    if arch == "gemma2" and None in (spec.attention_softcap, spec.logit_softcap):
        _refuse(spec, "scores or logits without a cap")
    if arch == "gemma3":
        local = config.rope_parameters["sliding_attention"]
        if local["rope_type"] != "default" or local["rope_theta"] != GEMMA3_WINDOWED_BASE:
            _refuse(spec, f"rotary positions of windowed layers by {dict(local)}")
        if spec.logit_softcap is not None:
            _refuse(spec, "capped logits")


def _sizes(spec: ModelSpec) -> dict[str, int]:
    return {
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_heads,
        "head_dim": spec.head_dim,
    }


def _of_family(spec: ModelSpec, config: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if spec.family.startswith("gemma"):
        values["attention.sliding_window"] = config.sliding_window
    if spec.family == "gemma2":
        values["attn_logit_softcapping"] = float(config.attn_logit_softcapping)
        values["final_logit_softcapping"] = float(config.final_logit_softcapping)
    if spec.family == "phi3":
        values["rope.scaling.original_context_length"] = config.original_max_position_embeddings
    if spec.experts is not None:
        values["expert_count"] = spec.experts.count
        values["expert_used_count"] = spec.experts.per_token
    if spec.family == "qwen3_moe" and spec.experts is not None:
        values["expert_feed_forward_length"] = spec.experts.intermediate_size
    return values


def _refuse(spec: ModelSpec, what: str) -> None:
    raise ModelError(
        f"a GGUF file of the architecture {ARCHITECTURES[spec.family]} cannot express that this "
        f"{spec.family} model has {what}. Export it as hf"
    )
