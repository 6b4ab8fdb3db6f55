"""Gemma 2 and 3 (text). Pure.

Both scale the embeddings, norm what goes into attention and MLP and what comes out, and alternate
windows with full attention. Gemma 2 caps scores and logits; Gemma 3 norms queries and keys
instead, and turns the positions of its windowed layers by a base of their own.
"""

from typing import Any

from .config_values import Config, check_computing, count, flag, number, refuse
from .decoder import DecoderSizes, Tensors, gated_mlp, lay_out, norms, projections, read_sizes
from .layer_kinds import FULL, SLIDING, read_kinds
from .model import ModelSpec

LAYER_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
BOTH_WAYS = "only a causal model can be fine-tuned here"


def gemma2_spec(config: Config, max_record_elements: int) -> ModelSpec:
    """Gemma 2: every other layer has a window, the first one too."""
    sizes = _sizes(config)
    bias = flag(config, "attention_bias")
    layer = [
        *projections(sizes, qkv_bias=bias, o_bias=bias),
        *gated_mlp(sizes),
        *norms(sizes.hidden_size, *LAYER_NORMS),
    ]
    return _gemma(
        "gemma2",
        config,
        sizes,
        layer,
        max_record_elements=max_record_elements,
        pattern=2,
        attention_softcap=number(config, "attn_logit_softcapping", 50.0),
        logit_softcap=number(config, "final_logit_softcapping", 30.0),
    )


def gemma3_spec(config: Config, max_record_elements: int) -> ModelSpec:
    """Gemma 3, text alone: every sixth layer attends to everything, the others to a window."""
    sizes = _sizes(config)
    refuse(config, "attn_logit_softcapping", "transformers' Gemma 3 does not apply it")
    bias = flag(config, "attention_bias")
    layer = [
        *projections(sizes, qkv_bias=bias, o_bias=bias),
        *norms(sizes.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
        *gated_mlp(sizes),
        *norms(sizes.hidden_size, *LAYER_NORMS),
    ]
    return _gemma(
        "gemma3_text",
        config,
        sizes,
        layer,
        max_record_elements=max_record_elements,
        pattern=count(config, "sliding_window_pattern", 6),
        logit_softcap=number(config, "final_logit_softcapping", None),
    )


def _sizes(config: Config) -> DecoderSizes:
    check_computing(config, activation="hidden_activation", rope_per_kind=(FULL.name, SLIDING))
    refuse(config, "use_bidirectional_attention", BOTH_WAYS)
    return read_sizes(config, divides_hidden=False)


def _gemma(
    family: str,
    config: Config,
    sizes: DecoderSizes,
    layer: Tensors,
    *,
    max_record_elements: int,
    pattern: int,
    **traits: Any,
) -> ModelSpec:
    return lay_out(
        family,
        config,
        sizes,
        layer,
        kinds=read_kinds(config, sizes.num_layers, lambda i: (i + 1) % pattern != 0),
        tied=flag(config, "tie_word_embeddings", default=True),
        max_record_elements=max_record_elements,
        embedding_scale=sizes.hidden_size**0.5,
        **traits,
    )
