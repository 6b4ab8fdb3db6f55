"""Choosing a placement: which records live where, how many slots, what is recomputed. Pure.

On the CPU both memory tiers are the same memory, so state goes to the host when all of it fits
and to NVMe otherwise. On a GPU the shares of state and of kept activations on the device are
searched for the shortest step, as the box's rates predict it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product

from .additions import (
    may_guess,
    needs_kept_grads,
    with_cached_weights,
    with_kept,
    with_second_versions,
)
from .config import TrainConfig
from .home_choices import (
    DEFAULT_SLOTS,
    MIN_SLOTS,
    all_parked,
    inputs_apart,
    repeat,
    tier_choices,
    with_what_lies_beside,
)
from .homes import NearTier, Placement, Tier
from .host_share import asked_on_host, with_host_updates, with_two_versions
from .model import ModelSpec
from .parked import NUM_ACTIVATION_BUFFERS
from .rates import VolumeRates
from .sizes import Sizes
from .step_cost import StepModel
from .strategies import STRATEGIES, may_live
from .weighing import Weighed

_DEEP_SLOTS = (24, 16, 12, 8, 6, 5, 4)
_NVME_GAIN = 0.05  # a drive is worn only where any other step takes so much longer


def choose_placement(
    model: StepModel,
    sizes: Sizes,
    drives: VolumeRates,
    *,
    device_limit: int,
    host_limit: int,
    weigh: bool = True,
) -> Placement:
    """The fastest placement that fits the limits (bytes), or, not to `weigh` them, the first one.
    When none does, of those that fit the device the one that takes least of the host, else the last
    resort. One that streams from NVMe is taken only where nothing else fits or is nearly as fast.
    """
    config = sizes.config
    weighed = Weighed(model, drives)
    least = least_placement(sizes)
    nearest = [(sizes.host(least), least)] if sizes.device(least) <= device_limit else []

    def fitting(candidates: Iterable[Placement], most: int | None = None) -> list[Placement]:
        return list(islice(_fitting(candidates), most))

    def _fitting(candidates: Iterable[Placement]) -> Iterator[Placement]:
        for placement in candidates:
            if sizes.device(placement) > device_limit:
                continue
            if (host := sizes.host(placement)) <= host_limit:
                yield placement
            elif not nearest or host < nearest[0][0]:
                nearest[:] = [(host, placement)]

    at_home = replace(least, tiers=repeat("device", len(least.tiers)), keep_grads=False)
    if min(sizes.device(least), sizes.device(at_home)) > device_limit:
        return least  # every other one streams through as many slots and holds no less
    enough = None if weigh else 1
    near = _candidates(sizes, _parked_choices(sizes), device_limit, host_limit)
    known = fitting(near, enough)
    if not known:  # layer inputs then wait on several tiers, as near as they fit
        apart = _with_inputs_apart(sizes, device_limit, host_limit)
        known = fitting(apart, enough)
    if not known or not weigh:
        return known[0] if known else nearest[0][1] if nearest else least
    best: list[tuple[float, Placement]] = []
    for streams in (False, True):
        group = [placement for placement in known if placement.streams == streams]
        if group:
            finalists = weighed.best(group)
            finalists += fitting(_with_more_slots(sizes, finalists, device_limit))
            finalists = weighed.best(finalists)
            finalists += fitting(with_second_versions(sizes, finalists))
            finalists += fitting(with_host_updates(sizes.spec, config, finalists))
            finalists += fitting(with_cached_weights(sizes, finalists))
            best.append(weighed.fastest(finalists, device_limit, host_limit))
    (seconds, chosen), *streamed = best
    if streamed and seconds > streamed[0][0] * (1 + _NVME_GAIN):
        return streamed[0][1]
    return chosen


def _with_more_slots(
    sizes: Sizes, placements: Sequence[Placement], device_limit: int
) -> Iterator[Placement]:
    """On a GPU spare slots are a cache: they take what the next step begins with."""
    config = sizes.config
    if config.device != "cuda" or config.num_slots is not None:
        return
    for placement, num_slots in product(placements, _DEEP_SLOTS):
        if set(placement.tiers) != {"device"}:
            deep = replace(placement, num_slots=num_slots, keep_layers=())
            yield with_kept(sizes, config, deep, device_limit)


def _candidates(
    sizes: Sizes, waits: Sequence[tuple[Tier, ...]], device_limit: int, host_limit: int
) -> Iterator[Placement]:
    config = sizes.config
    strategy, frozen = STRATEGIES[config.strategy], _frozen(sizes.spec)
    # What a placement may take before layers are kept: with all of them kept none is recomputed,
    # and no input is on its way.
    most = device_limit + sizes.working_bytes
    most += NUM_ACTIVATION_BUFFERS * sizes.microbatch_hidden_bytes
    for homes in tier_choices(sizes, config, host_limit):
        tiers = with_what_lies_beside(sizes.spec, homes)
        keep_grads = needs_kept_grads(sizes.spec, config, tiers)
        grads_move = keep_grads and set(tiers) != {"device"}
        placed = Placement(
            tiers=tiers,
            num_slots=_slot_choices(config)[-1],
            keep_grads=keep_grads,
            on_host=asked_on_host(sizes.spec, config, tiers),
            order=strategy.order,
            frozen=frozen,
        )
        if strategy.caches_weights:
            far = tuple(i for i, tier in enumerate(tiers) if tier != "device")
            placed = replace(placed, cached=far)
        if config.clip_way == "speculative" and may_guess(config, placed):
            placed = with_two_versions(sizes.spec, config, placed)
        grad_tiers = _grad_tiers(config) if grads_move else ("host",)
        least = replace(placed, grad_tier=grad_tiers[-1])
        if all(sizes.device(replace(least, activation_tiers=one)) > most for one in waits):
            continue  # none of its variants fits
        for num_slots, grad_tier, parked in product(_slot_choices(config), grad_tiers, waits):
            placement = replace(
                placed, num_slots=num_slots, grad_tier=grad_tier, activation_tiers=parked
            )
            yield with_kept(sizes, config, placement, device_limit)


def _frozen(spec: ModelSpec) -> tuple[int, ...]:
    return tuple(i for i, record in enumerate(spec.records) if record.base is not None)


def _slot_choices(config: TrainConfig) -> Sequence[int]:
    if config.num_slots is not None:
        return (config.num_slots,)
    return range(DEFAULT_SLOTS, MIN_SLOTS - 1, -1)


def _grad_tiers(config: TrainConfig) -> Sequence[NearTier]:
    """Where kept gradients may wait, the nearest first. The CPU's tiers are the same memory."""
    if config.grad_tier != "auto":
        return (config.grad_tier,)
    return ("device", "host") if config.device == "cuda" else ("host",)


def _parked_choices(sizes: Sizes) -> Sequence[tuple[Tier, ...]]:
    """Where layer inputs may wait when all wait on one tier, the nearest first."""
    config = sizes.config
    near: tuple[Tier, ...] = ("device", "host") if config.device == "cuda" else ("device",)
    asked = config.activation_tier
    return [all_parked(sizes.spec, tier) for tier in (near if asked == "auto" else (asked,))]


def _with_inputs_apart(sizes: Sizes, device_limit: int, host_limit: int) -> Iterator[Placement]:
    """Placements whose layer inputs wait partly on NVMe, where that is left to the plan."""
    config = sizes.config
    if not _may_wait_on_nvme(config) or config.recompute == "none":
        return
    away = [all_parked(sizes.spec, "nvme")]
    for placement in _candidates(sizes, away, device_limit, host_limit):
        for apart in inputs_apart(sizes, placement, device_limit, host_limit):
            yield with_kept(sizes, config, apart, device_limit)


def _may_wait_on_nvme(config: TrainConfig) -> bool:
    """Whether the plan may send layer inputs there although the run does not ask for it."""
    return config.activation_tier == "auto" and "nvme" in STRATEGIES[config.strategy].tiers


def _farthest(sizes: Sizes) -> tuple[Tier, ...]:
    """Where layer inputs take least memory."""
    if _may_wait_on_nvme(sizes.config):
        return all_parked(sizes.spec, "nvme")
    return _parked_choices(sizes)[-1]


def least_placement(sizes: Sizes) -> Placement:
    """The placement that takes least: what is missing from it is what the refusal says."""
    config = sizes.config
    count = len(sizes.spec.records) - len(sizes.spec.of_kind("beside"))
    tiers = with_what_lies_beside(sizes.spec, repeat(may_live(config)[-1], count))
    keep = range(sizes.spec.num_layers) if config.recompute == "none" else ()
    return Placement(
        tiers=tiers,
        num_slots=config.num_slots or MIN_SLOTS,
        keep_layers=tuple(keep),
        activation_tiers=_farthest(sizes),
        grad_tier=_grad_tiers(config)[-1],
        keep_grads=needs_kept_grads(sizes.spec, config, tiers),
        order=STRATEGIES[config.strategy].order,
        frozen=_frozen(sizes.spec),
    )
