"""Families with a mixture of experts: Mixtral and Qwen 3 MoE. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from .config_values import Config, check_computing, check_number, count, flag, refuse
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
from .layer_kinds import DEFAULT_WINDOW, same_window
from .llama import LAYER_NORMS
from .model import ExpertSpec, LayerKind, ModelSpec
from .model_files import ModelError

MAX_EXPERTS = 4096  # of a layer; far above any model
DEFAULT_BALANCE = 0.001


def mixtral_spec(config: Config, max_record_elements: int) -> ModelSpec:
    """Mixtral: a Mistral in which every layer has experts instead of its MLP."""
    sizes = read_sizes(config)
    check_computing(config)
    refuse(config, "router_jitter_noise", "training has no noise in its routers: set it to 0.0")
    experts = ExpertSpec(
        count=_experts(config, "num_local_experts"),
        per_token=count(config, "num_experts_per_tok"),
        intermediate_size=sizes.intermediate_size,
        block="block_sparse_moe",
        projections=("w1", "w3", "w2"),
        balance=_balance(config),
    )
    layer: Tensors = [
        *projections(sizes),
        *_mixture(sizes, experts),
        *norms(sizes.hidden_size, *LAYER_NORMS),
    ]
    return _with_experts(
        "mixtral",
        config,
        sizes,
        experts,
        [layer] * sizes.num_layers,
        widest=experts.per_token * sizes.intermediate_size,
        kinds=same_window(config, sizes.num_layers),
        max_record_elements=max_record_elements,
    )


def qwen3_moe_spec(config: Config, max_record_elements: int) -> ModelSpec:
    """Qwen 3 MoE: a Qwen 3 in which layers have experts, but for those that say otherwise."""
    sizes = read_sizes(config, divides_hidden=False)
    check_computing(config)
    experts = ExpertSpec(
        count=_experts(config, "num_experts" if "num_experts" in config else "num_local_experts"),
        per_token=count(config, "num_experts_per_tok"),
        intermediate_size=count(config, "moe_intermediate_size"),
        block="mlp",
        projections=("gate_proj", "up_proj", "down_proj"),
        balance=_balance(config),
    )
    bias = flag(config, "attention_bias")
    attention = [
        *projections(sizes, qkv_bias=bias, o_bias=bias),
        *norms(sizes.head_dim, "self_attn.q_norm", "self_attn.k_norm"),
    ]
    outer = norms(sizes.hidden_size, *LAYER_NORMS)
    sparse: Tensors = [*attention, *_mixture(sizes, experts), *outer]
    dense: Tensors = [*attention, *gated_mlp(sizes), *outer]
    is_sparse = _sparse(config, sizes.num_layers)
    passed = experts.per_token * experts.intermediate_size
    window = config if flag(config, "use_sliding_window") else {**config, "sliding_window": None}
    return _with_experts(
        "qwen3_moe",
        config,
        sizes,
        experts,
        [sparse if has_experts else dense for has_experts in is_sparse],
        widest=max(passed if one else sizes.intermediate_size for one in is_sparse),
        kinds=same_window(window, sizes.num_layers, DEFAULT_WINDOW),
        max_record_elements=max_record_elements,
    )


def _sparse(config: Config, num_layers: int) -> list[bool]:
    """Which layers have experts: every so many, but for the ones that are named."""
    every = count(config, "decoder_sparse_step", 1)
    named = config.get("mlp_only_layers") or []
    if not isinstance(named, list) or not all(type(i) is int for i in named):
        raise ModelError(f"config: mlp_only_layers is {str(named)[:80]}; wanted a list of numbers")
    return [i not in named and (i + 1) % every == 0 for i in range(num_layers)]


def _experts(config: Config, key: str) -> int:
    found = count(config, key)
    chosen = count(config, "num_experts_per_tok")
    if found > MAX_EXPERTS or chosen > found:
        raise ModelError(
            f"config: {key} is {found} and num_experts_per_tok {chosen}; wanted at most "
            f"{MAX_EXPERTS} experts, and no more for a token than there are"
        )
    return found


def _balance(config: Config) -> float:
    """The coefficient of the loss that balances experts, which transformers adds to the other when
    it is told to give the routers' logits out."""
    key = "router_aux_loss_coef"
    coefficient = config.get(key, DEFAULT_BALANCE)
    if coefficient == 0 or not flag(config, "output_router_logits"):
        return 0.0
    check_number({key: coefficient}, key)
    return float(coefficient)


def _mixture(sizes: DecoderSizes, experts: ExpertSpec) -> Tensors:
    """Every expert's projections, one expert behind the other, and the router."""
    gate, up, down = experts.projections
    inner, hidden = experts.intermediate_size, sizes.hidden_size
    tensors = []
    for i in range(experts.count):
        one = f"{experts.block}.experts.{i}"
        tensors += [
            *linear(f"{one}.{gate}", inner, hidden),
            *linear(f"{one}.{up}", inner, hidden),
            *linear(f"{one}.{down}", hidden, inner),
        ]
    return [*tensors, *linear(f"{experts.block}.gate", experts.count, hidden)]


def _with_experts(
    family: str,
    config: Config,
    sizes: DecoderSizes,
    experts: ExpertSpec,
    layers: Sequence[Tensors],
    *,
    widest: int,
    kinds: Sequence[LayerKind],
    max_record_elements: int,
) -> ModelSpec:
    """`widest`: intermediate elements that a token passes in a layer, at most."""
    return lay_out(
        family,
        config,
        replace(sizes, intermediate_size=widest),
        layers[0],
        layers=layers,
        kinds=kinds,
        tied=flag(config, "tie_word_embeddings"),
        max_record_elements=max_record_elements,
        experts=experts,
    )
