"""Named model shapes, for planning and timing without model files. Pure, no torch."""

from typing import Any

from .model import ModelSpec
from .source import spec_from_config

# Public configurations of the named models, but with untied heads (SmolLM2-135M and Llama 3.2 3B
# tie theirs); `layers` may shorten them. `dense-120b` is no model's: the shape of a Llama at that
# size. What a mixture says besides is in the words of its config.json.
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": dict(hidden=256, intermediate=1024, heads=4, kv_heads=2, vocab=2048, layers=12),
    "smollm2-135m": dict(
        hidden=576, intermediate=1536, heads=9, kv_heads=3, vocab=49152, layers=30
    ),
    "llama-8b-vocab-32k": dict(
        hidden=4096, intermediate=14336, heads=32, kv_heads=8, vocab=32000, layers=32
    ),
    "llama3-3b": dict(
        hidden=3072, intermediate=8192, heads=24, kv_heads=8, vocab=128256, layers=28
    ),
    "llama3-8b": dict(
        hidden=4096, intermediate=14336, heads=32, kv_heads=8, vocab=128256, layers=32
    ),
    # The sizes of Qwen2.5-14B and -32B, as Llama layers: without biases.
    "14b": dict(hidden=5120, intermediate=13824, heads=40, kv_heads=8, vocab=152064, layers=48),
    "32b": dict(hidden=5120, intermediate=27648, heads=40, kv_heads=8, vocab=152064, layers=64),
    "llama3-70b": dict(
        hidden=8192, intermediate=28672, heads=64, kv_heads=8, vocab=128256, layers=80
    ),
    "dense-120b": dict(
        hidden=10240, intermediate=32768, heads=80, kv_heads=8, vocab=128256, layers=96
    ),
    "mixtral-8x7b": dict(
        hidden=4096, intermediate=14336, heads=32, kv_heads=8, vocab=32000, layers=32,
        model_type="mixtral", num_local_experts=8, num_experts_per_tok=2,
    ),
    "mixtral-8x22b": dict(
        hidden=6144, intermediate=16384, heads=48, kv_heads=8, vocab=32768, layers=56,
        model_type="mixtral", num_local_experts=8, num_experts_per_tok=2,
    ),
    "qwen3-30b-a3b": dict(
        hidden=2048, intermediate=6144, heads=32, kv_heads=4, vocab=151936, layers=48,
        model_type="qwen3_moe", head_dim=128, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=768,
    ),
    "qwen3-235b-a22b": dict(
        hidden=4096, intermediate=12288, heads=64, kv_heads=4, vocab=151936, layers=94,
        model_type="qwen3_moe", head_dim=128, num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=1536,
    ),
}  # fmt: skip
_OUR_NAMES = ("hidden", "intermediate", "heads", "kv_heads", "vocab", "layers")


def shape_spec(shape: str, layers: int | None = None) -> ModelSpec:
    """The layout of a named shape; ValueError lists the names."""
    if shape not in SHAPES:
        raise ValueError(f"unknown shape {shape!r}; known: {', '.join(SHAPES)}")
    sizes = SHAPES[shape]
    return spec_from_config(
        {
            "model_type": "llama",
            **{name: value for name, value in sizes.items() if name not in _OUR_NAMES},
            "hidden_size": sizes["hidden"],
            "intermediate_size": sizes["intermediate"],
            "num_attention_heads": sizes["heads"],
            "num_key_value_heads": sizes["kv_heads"],
            "num_hidden_layers": layers or sizes["layers"],
            "vocab_size": sizes["vocab"],
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
        }
    )
