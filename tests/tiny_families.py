"""A tiny model of every family, with all that makes the family differ switched on."""

from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING

from tiny import VOCAB_SIZE, write_model

WINDOW = 8  # shorter than most rows of the tests

SHARED: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

# What a case adds to the shared values; its name begins with the family's `model_type`.
CASES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True},
    "mistral": {"head_dim": 24, "sliding_window": None},
    "mistral-window": {"sliding_window": WINDOW},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2-window": {
        "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1,
    },
    "qwen3": {"head_dim": 24},
    "gemma2": {"head_dim": 24, "sliding_window": WINDOW, "query_pre_attn_scalar": 20,
               "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {
        "head_dim": 24, "sliding_window": WINDOW, "query_pre_attn_scalar": 20,
        "sliding_window_pattern": 2, "final_logit_softcapping": 3.0,
    },
    "phi3": {},
    "phi3-window": {
        "sliding_window": WINDOW,
        "tie_word_embeddings": True,
        "original_max_position_embeddings": 16,
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
            "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        },
        "partial_rotary_factor": 0.75,
    },
    "olmo2": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 24},
    "qwen3_moe": {
        "head_dim": 24, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": True, "mlp_only_layers": [1],
    },
}  # fmt: skip


def write_family(model_dir: Path, case: str, *, seed: int = 7, **kwargs: Any) -> Path:
    """Write the model of a case as a Hugging Face directory and return the directory."""
    config_class = CONFIG_MAPPING[case.split("-")[0]]
    return write_model(model_dir, config_class(**SHARED, **CASES[case]), seed=seed, **kwargs)
