"""Homes that the state of records may have: the splits over tiers that are worth weighing. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from .config import TrainConfig
from .homes import Placement, Tier
from .model import ModelSpec
from .parked import NUM_ACTIVATION_BUFFERS, parked_tiers
from .sizes import Sizes, kept_grad_bytes
from .strategies import may_live

DEFAULT_SLOTS = 3
MIN_SLOTS = 2
FEW_RECORDS = 16  # a model of so few is searched more closely: each of them is much of the whole


def tier_choices(sizes: Sizes, config: TrainConfig, host_limit: int) -> Iterator[tuple[Tier, ...]]:
    """Homes to consider, the nearest first; on a GPU, or by a strategy, every split by layers.

    What lies beside frozen layers is left out: it comes last of all records and has no choice.
    """
    count = len(sizes.spec.records) - len(sizes.spec.of_kind("beside"))
    allowed = may_live(config)
    if "device" in allowed and (config.device == "cuda" or config.strategy != "auto"):
        coarse = max(1, count // 24)  # a search of seconds for a large model would be felt
        for num_near in range(count, -1, -coarse):
            num_far = count - num_near
            hosts = _host_choices(sizes, num_far, host_limit) if "host" in allowed else (0,)
            for num_host in hosts:
                tiers = (
                    *repeat("nvme", num_far - num_host),
                    *repeat("host", num_host),
                    *repeat("device", num_near),
                )
                if set(tiers) <= set(allowed):
                    yield tiers
    for tier in ("host", "nvme") if config.state_tier == "auto" else allowed:
        if tier in allowed:
            yield repeat(tier, count)


def with_what_lies_beside(spec: ModelSpec, tiers: Sequence[Tier]) -> tuple[Tier, ...]:
    """The homes of all records: what is trained beside frozen layers is always at hand."""
    return (*tiers, *repeat("device", len(spec.of_kind("beside"))))


def _host_choices(sizes: Sizes, num_far: int, host_limit: int) -> list[int]:
    """How many of the first `num_far` records may live in host memory: all, or as many as it
    holds beside staging and the gradients of all of them, parked activations, both or neither."""
    far = sizes.spec.records[:num_far]
    grads = sum(kept_grad_bytes(sizes.config, record) for record in far)
    beside = {0, grads, sizes.boundary_bytes, grads + sizes.boundary_bytes}
    staging = [DEFAULT_SLOTS + 1]
    if len(sizes.spec.records) <= FEW_RECORDS:  # else it is little of what host memory holds
        staging.append(MIN_SLOTS)
    rooms = {host_limit - a - b * sizes.slot_bytes for a, b in product(beside, staging)}
    fitting = {_fit_in(sizes.state_bytes[:num_far], room) for room in rooms}
    return sorted({num_far, *fitting}, reverse=True)


def _fit_in(state_bytes: Sequence[int], room: int) -> int:
    """How many records, taken from the last, have so much room (bytes)."""
    fitting = 0
    for size in reversed(state_bytes):
        room -= size
        if room < 0:
            break
        fitting += 1
    return fitting


def repeat(tier: Tier, count: int) -> tuple[Tier, ...]:
    """So many records on one tier."""
    return (tier,) * count


def all_parked(spec: ModelSpec, tier: Tier) -> tuple[Tier, ...]:
    """Every layer's input on one tier."""
    first, count = spec.first_backward_layer, spec.num_layers - spec.first_backward_layer
    away = {} if tier == "device" else {tier: count}
    return parked_tiers(spec.num_layers, first, nvme=away.get("nvme", 0), host=away.get("host", 0))


def inputs_apart(
    sizes: Sizes, placement: Placement, device_limit: int, host_limit: int
) -> Iterator[Placement]:
    """The placement with as many layer inputs in host memory as fit and the rest on NVMe: with as
    many of them on the device as it has room for, or with none, so that it keeps layers whole."""
    spec, hidden = sizes.spec, max(1, sizes.hidden_bytes)
    first, count = spec.first_backward_layer, spec.num_layers - spec.first_backward_layer
    far = replace(placement, keep_layers=(), activation_tiers=all_parked(spec, "nvme"))
    roads = NUM_ACTIVATION_BUFFERS * sizes.microbatch_hidden_bytes
    spare = device_limit - sizes.device(far)
    host_fits = max(0, host_limit - sizes.host(far)) // hidden if spare >= roads else 0
    near_fits = max(0, spare - roads) // hidden
    for near in sorted({min(count, near_fits), 0}):
        host = min(count - near, host_fits)
        apart = parked_tiers(spec.num_layers, first, nvme=count - near - host, host=host)
        yield replace(far, activation_tiers=apart)
