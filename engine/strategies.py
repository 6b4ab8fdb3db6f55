"""What published systems do, as constraints on the same planner and the same engine. Pure.

A strategy says where state may live and settles choices that are otherwise the plan's. It changes
no bit of the result. What the run itself says goes before what its strategy says.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .config import StrategyName, TrainConfig
from .homes import Order, Tier
from .model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One system's way. `rule` says it in a sentence; `settings` are fields of TrainConfig.

    `tiers`: where state may live, the nearest first. `caches_weights`: weights stay on the device
    wherever the rest lives. `order`: every microbatch through a layer before the next layer, or
    every layer for a microbatch before the next microbatch.
    """

    system: str
    rule: str
    tiers: tuple[Tier, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    caches_weights: bool = False
    order: Order = "layers"


STRATEGIES: Mapping[StrategyName, Strategy] = {
    "auto": Strategy(
        system="Headrace",
        rule="the placement with the shortest predicted step",
        tiers=("device", "host", "nvme"),
    ),
    "resident": Strategy(
        system="training in device memory",
        rule="all state on the device; nothing moves but commits",
        tiers=("device",),
    ),
    "zero_offload": Strategy(
        system="ZeRO-Offload (Ren et al., 2021), with Twin-Flow's share by optimizer_host_share",
        rule="weights on the device, the rest in host memory (else on NVMe) and updated there",
        tiers=("host", "nvme"),
        settings={"optimizer_device": "host", "grad_tier": "host", "clip_way": "serial"},
        caches_weights=True,
    ),
    "zero_infinity": Strategy(
        system="ZeRO-Infinity (Rajbhandari et al., 2021)",
        rule="all state on NVMe; one microbatch after the other through all layers, gradients "
             "summed in host memory, one pass of updates at the end",
        tiers=("nvme",),
        settings={"clip_way": "serial", "recompute": "all", "grad_tier": "host"},
        order="microbatches",
    ),
    "megatrain": Strategy(
        system="MegaTrain (2026, arXiv 2604.05091)",
        rule="all state in host memory, two slots, everything recomputed, the processor updates",
        tiers=("host",),
        settings={"num_slots": 2, "recompute": "all", "optimizer_device": "host",
                  "grad_tier": "host", "clip_way": "serial"},
    ),
    "teraio": Strategy(
        system="TERAIO (2025, arXiv 2506.06472)",
        rule="device and NVMe alone: what saves most traffic for the memory it takes stays near",
        tiers=("device", "nvme"),
    ),
    "memascend": Strategy(
        system="MemAscend (2025, arXiv 2505.23254)",
        rule="all state on NVMe through staging of exact size, one pass of updates at the end",
        tiers=("nvme",),
        settings={"clip_way": "serial", "recompute": "all"},
    ),
    "ratel": Strategy(
        system="Ratel (2024, arXiv 2403.06504)",
        rule="all state on NVMe, updated in the backward pass; layers kept while memory lasts",
        tiers=("nvme",),
        settings={"clip_way": "speculative", "recompute": "auto"},
    ),
    "superoffload": Strategy(
        system="SuperOffload (2025)",
        rule="state in host memory and a tail on the device, updated before the norm is known",
        tiers=("device", "host"),
        settings={"clip_way": "speculative", "optimizer_device": "device"},
    ),
    "unified": Strategy(
        system="unified memory (MLX and the like)",
        rule="one memory, NVMe below it; nothing is kept twice in memory",
        tiers=("device", "nvme"),
        settings={"grad_tier": "device", "activation_tier": "device"},
    ),
}  # fmt: skip


class StrategyConflict(ValueError):
    """A strategy and the rest of a run contradict each other; the message says what to leave."""


def with_strategy(spec: ModelSpec, config: TrainConfig) -> TrainConfig:
    """The config with what its strategy settles, where the run itself has left it open.

    StrategyConflict when the run asks for what the strategy, by its own rule, cannot do.
    """
    strategy = STRATEGIES[config.strategy]
    is_open = {
        name: value
        for name, value in strategy.settings.items()
        if getattr(config, name) in ("auto", None)
    }
    if config.optimizer_host_share is not None:
        is_open.pop("optimizer_device", None)
    settled = replace(config, **is_open)
    for conflict in _conflicts(strategy, spec, settled):
        raise StrategyConflict(f"strategy {config.strategy} {conflict}")
    return settled


def _conflicts(strategy: Strategy, spec: ModelSpec, config: TrainConfig) -> Iterator[str]:
    """What a run asks for that would be dropped in silence if its strategy were followed."""
    late = strategy.order == "microbatches" or strategy.caches_weights
    if late and len(spec.trained) < len(spec.records):
        yield "trains every weight, and here some are frozen; use auto"
    if strategy.order == "microbatches" and spec.experts is not None and spec.experts.balance:
        yield (
            "ends one microbatch before it begins the next, and the loss that balances experts "
            "goes by all tokens of a step; use another, or set router_aux_loss_coef to 0"
        )
    if config.state_tier != "auto" and config.state_tier not in strategy.tiers:
        yield (
            f"keeps state on {' or '.join(strategy.tiers)}, and state_tier is "
            f"{config.state_tier}; leave one of them out"
        )
    if late and config.clip_way != "serial":
        yield (
            f"updates when all gradients are known, and clip_way is {config.clip_way}; leave one "
            f"of them out"
        )
    if strategy.order == "microbatches" and config.recompute == "none":
        yield "recomputes every layer, and recompute is none; leave one of them out"
    early = config.clip_way == "speculative" and strategy.tiers == ("nvme",)
    if early and config.commit_every_steps > 1:
        yield (
            "updates on NVMe in the backward pass, beside what is committed, so it commits every "
            "step, and this run does not; leave the strategy or the rarer commits out"
        )
    updated_there = config.optimizer_device == "host" or config.optimizer_host_share
    if updated_there and "host" not in strategy.tiers:
        yield (
            "keeps no state in host memory, and that alone is what the processor updates; leave "
            "optimizer_device or optimizer_host_share out"
        )


def may_live(config: TrainConfig) -> tuple[Tier, ...]:
    """Tiers that state may live on, the nearest first."""
    if config.state_tier != "auto":
        return (config.state_tier,)
    return STRATEGIES[config.strategy].tiers
