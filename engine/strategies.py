"""What published systems do, as constraints on the same planner and the same engine. Pure.

A strategy says where state may live and settles choices that are otherwise the plan's. It changes
no bit of the result. What the run itself says goes before what its strategy says.
"""

from collections.abc import Mapping
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


def with_strategy(spec: ModelSpec, config: TrainConfig) -> TrainConfig:
    """The config with what its strategy settles, where the run itself has left it open.

    ValueError when the state shall live where the strategy has none, when weights are frozen that
    it trains, or when experts are balanced that it never sees all tokens of.
    """
    strategy = STRATEGIES[config.strategy]
    whole = strategy.order == "microbatches" or strategy.caches_weights
    if whole and len(spec.trained) < len(spec.records):
        raise ValueError(
            f"strategy {config.strategy} trains every weight, and here some are frozen; use auto"
        )
    if strategy.order == "microbatches" and spec.experts is not None and spec.experts.balance:
        raise ValueError(
            f"strategy {config.strategy} ends one microbatch before it begins the next, and the "
            f"loss that balances experts goes by all of a step's tokens; use another, or set "
            f"router_aux_loss_coef to 0"
        )
    if config.state_tier != "auto" and config.state_tier not in strategy.tiers:
        raise ValueError(
            f"strategy {config.strategy} keeps state on {' or '.join(strategy.tiers)}, and "
            f"state_tier is {config.state_tier}; leave one of them out"
        )
    is_open = {
        name: value
        for name, value in strategy.settings.items()
        if getattr(config, name) in ("auto", None)
    }
    if config.optimizer_host_share is not None:
        is_open.pop("optimizer_device", None)
    return replace(config, **is_open)


def may_live(config: TrainConfig) -> tuple[Tier, ...]:
    """Tiers that state may live on, the nearest first."""
    if config.state_tier != "auto":
        return (config.state_tier,)
    return STRATEGIES[config.strategy].tiers
