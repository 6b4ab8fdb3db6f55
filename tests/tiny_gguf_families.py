"""A tiny model of every family, as far as a GGUF file can tell of it."""

from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING

from headrace.engine.export_gguf import export_gguf
from headrace.engine.source import read_model_spec
from headrace.engine.weight_source import open_source
from runs import whole_params
from tiny import write_model
from tiny_families import SHARED, WINDOW

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192, "rope_theta": 500000.0}  # fmt: skip
# What readers of GGUF files take for granted of a family is as they take it.
CASES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama-3": {"head_dim": 64, "max_position_embeddings": 131072, "rope_parameters": LLAMA3},
    "llama-linear": {"rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "mistral": {"head_dim": 24, "sliding_window": None},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2-yarn": {
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
        },
    },
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {
        "head_dim": 32, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 768,
        "norm_topk_prob": True,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 24},
    "gemma2": {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": WINDOW},
    "gemma3_text": {
        "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": WINDOW,
        "num_hidden_layers": 7,
    },
    "phi3": {"partial_rotary_factor": 0.5},
    "olmo2": {},
}  # fmt: skip


def write_case(folder: Path, case: str, *, dtype: str = "float32", **changes: Any) -> Path:
    """The tiny model of a case."""
    config_class = CONFIG_MAPPING[case.split("-")[0]]
    config = config_class(**{**SHARED, **CASES[case], **changes})
    return write_model(folder, config, seed=7, dtype=dtype)


def export_copy(model_dir: Path, target: Path, *, dtype: str, pieces: int = 0) -> Path:
    """Export a model as it is; the path of the file."""
    spec = read_model_spec(model_dir, max_record_elements=pieces)
    with open_source(model_dir, spec) as source:
        export_gguf(
            target, spec, assets_dir=model_dir, name="tiny", dtype=dtype,
            read_pieces=whole_params(spec, source.read_record),
        )  # fmt: skip
    (path,) = target.iterdir()
    return path
