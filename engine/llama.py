"""Llama and the families that differ from it in little: Mistral, Qwen, OLMo 2, Phi. Pure.

Each function lays a model out from its config and the largest record, in elements. Absent optional
values mean what transformers' config of the family means by their absence.
"""

from .config_values import Config, check_computing, flag
from .decoder import (
    DecoderSizes,
    Tensors,
    gated_mlp,
    lay_out,
    linear,
    norms,
    projections,
    read_sizes,
)
from .layer_kinds import DEFAULT_WINDOW, read_kinds, same_window
from .model import LayerKind, ModelSpec
from .model_files import ModelError

LAYER_NORMS = ("input_layernorm", "post_attention_layernorm")


def llama_spec(config: Config, max_record_elements: int) -> ModelSpec:
    """Llama 1 to 3, and what took its shape, such as SmolLM and SmolLM2."""
    sizes = read_sizes(config, shares_heads=True, max_positions=2048)
    check_computing(config)
    bias = flag(config, "attention_bias")
    layer = [
        *projections(sizes, qkv_bias=bias, o_bias=bias),
        *gated_mlp(sizes, flag(config, "mlp_bias")),
        *norms(sizes.hidden_size, *LAYER_NORMS),
    ]
    tied = flag(config, "tie_word_embeddings")
    return lay_out(
        "llama", config, sizes, layer, tied=tied, max_record_elements=max_record_elements
    )


def mistral_spec(config: Config, max_record_elements: int) -> ModelSpec:
    """Mistral: a Llama without biases whose layers may all have a window."""
    sizes = read_sizes(config)
    check_computing(config)
    layer = [
        *projections(sizes),
        *gated_mlp(sizes),
        *norms(sizes.hidden_size, *LAYER_NORMS),
    ]
    return lay_out(
        "mistral",
        config,
        sizes,
        layer,
        kinds=same_window(config, sizes.num_layers, DEFAULT_WINDOW),
        tied=flag(config, "tie_word_embeddings"),
        max_record_elements=max_record_elements,
    )


def qwen2_spec(config: Config, max_record_elements: int) -> ModelSpec:
    """Qwen 2 and 2.5: queries, keys and values have biases; the upper layers may have a window."""
    sizes = read_sizes(config)
    check_computing(config)
    layer = [
        *projections(sizes, qkv_bias=True),
        *gated_mlp(sizes),
        *norms(sizes.hidden_size, *LAYER_NORMS),
    ]
    return _qwen("qwen2", config, sizes, layer, max_record_elements)


def qwen3_spec(config: Config, max_record_elements: int) -> ModelSpec:
    """Qwen 3: each head's queries and keys are normed."""
    sizes = read_sizes(config, divides_hidden=False)
    check_computing(config)
    bias = flag(config, "attention_bias")
    layer = [
        *projections(sizes, qkv_bias=bias, o_bias=bias),
        *norms(sizes.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
        *gated_mlp(sizes),
        *norms(sizes.hidden_size, *LAYER_NORMS),
    ]
    return _qwen("qwen3", config, sizes, layer, max_record_elements)


def _qwen(
    family: str, config: Config, sizes: DecoderSizes, layer: Tensors, max_record_elements: int
) -> ModelSpec:
    return lay_out(
        family,
        config,
        sizes,
        layer,
        kinds=_qwen_kinds(config, sizes.num_layers),
        tied=flag(config, "tie_word_embeddings"),
        max_record_elements=max_record_elements,
    )


def _qwen_kinds(config: Config, num_layers: int) -> list[LayerKind]:
    """The window counts only where `use_sliding_window` says so."""
    window = config.get("sliding_window", DEFAULT_WINDOW)
    off = "" if flag(config, "use_sliding_window") else "use_sliding_window is false"
    has_window = not off and window is not None
    first = config.get("max_window_layers", 28)
    if type(first) is not int:
        raise ModelError(f"config: max_window_layers is {first!r}; wanted a whole number")
    return read_kinds(config, num_layers, lambda i: has_window and i >= first, no_window=off)


def olmo2_spec(config: Config, max_record_elements: int) -> ModelSpec:
    """OLMo 2: norms behind attention and MLP instead of before, and over all queries and keys."""
    sizes = read_sizes(config, shares_heads=True, max_positions=2048)
    check_computing(config)
    bias = flag(config, "attention_bias")
    layer = [
        *projections(sizes, qkv_bias=bias, o_bias=bias),
        *norms(sizes.queries, "self_attn.q_norm"),
        *norms(sizes.keys, "self_attn.k_norm"),
        *gated_mlp(sizes),
        *norms(sizes.hidden_size, "post_attention_layernorm", "post_feedforward_layernorm"),
    ]
    tied = flag(config, "tie_word_embeddings")
    return lay_out(
        "olmo2", config, sizes, layer, tied=tied, max_record_elements=max_record_elements
    )


def phi3_spec(config: Config, max_record_elements: int) -> ModelSpec:
    """Phi 3 and 4: queries, keys and values are one projection, gate and up another."""
    sizes = read_sizes(config, shares_heads=True, max_positions=4096)
    check_computing(
        config,
        dropouts=("attention_dropout", "resid_pdrop", "embd_pdrop"),
        ropes=("default", "longrope"),
    )
    layer = [
        *linear("self_attn.o_proj", sizes.hidden_size, sizes.queries),
        *linear("self_attn.qkv_proj", sizes.queries + 2 * sizes.keys, sizes.hidden_size),
        *linear("mlp.gate_up_proj", 2 * sizes.intermediate_size, sizes.hidden_size),
        *linear("mlp.down_proj", sizes.hidden_size, sizes.intermediate_size),
        *norms(sizes.hidden_size, *LAYER_NORMS),
    ]
    return lay_out(
        "phi3",
        config,
        sizes,
        layer,
        kinds=same_window(config, sizes.num_layers),
        tied=flag(config, "tie_word_embeddings"),
        max_record_elements=max_record_elements,
    )
