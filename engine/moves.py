"""A placement's neighbours: one record with another home, or two that trade theirs. Pure.

The homes that a plan begins with are whole stretches of the order. Where a model has few records,
or memory ends within one, a single record elsewhere is worth much: what it frees holds kept layers,
gradients, or a second version of the state.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

from .additions import may_guess, needs_kept_grads, with_kept
from .config import TrainConfig
from .homes import NearTier, Placement, Tier
from .host_share import all_on_host, asked_on_host, with_same_host_updates
from .sizes import Sizes
from .strategies import may_live

_ROUNDS, _ROUND_RECORDS = 8, 80  # of a model of 35 records two, of one of more than 80 none
_NUM_PLAYED = 12
_LEAST_GAIN = 0.002  # less than what a prediction is good for changes nothing


def settled(
    sizes: Sizes,
    found: tuple[float, Placement],
    *,
    device_limit: int,
    host_limit: int,
    about: Callable[[Placement], float],
    seconds: Callable[[Placement, float], float],
) -> tuple[float, Placement]:
    """Seconds and placement from which no move leads to a shorter step, begun with the one `found`.

    Of all neighbours that stay within the limits (bytes), those that `about` finds best are held
    against each other by `seconds`, which is told from how many on they are of no use.
    """
    best = found
    if sizes.config.device != "cuda" or sizes.config.strategy != "auto":
        return best
    for _ in range(min(_ROUNDS, _ROUND_RECORDS // len(best[1].tiers))):
        near = [
            one
            for one in dict.fromkeys(neighbours(sizes, best[1], device_limit))
            if sizes.device(one) <= device_limit and sizes.host(one) <= host_limit
        ]
        least, before = best[0] * (1 - _LEAST_GAIN), best
        for one in sorted(near, key=about)[:_NUM_PLAYED]:
            taken = seconds(one, least)
            if taken < least:
                least, best = taken, (taken, one)
        if best is before:
            break
    return best


def neighbours(sizes: Sizes, placement: Placement, device_limit: int) -> Iterator[Placement]:
    """The placements one move away, with all that a move may make room for: gradients near or far,
    one version of the state in host memory or two, updates by the processor as before, of all
    layers there or of none, as many kept layers as the device then has room for (bytes).

    Of neighbouring records that are alike and live on the same tier the first and the last one
    stand for all, so that there are no more of them in a model of many layers.
    """
    if placement.cached:
        return
    config, spec = sizes.config, sizes.spec
    grad_tiers: tuple[NearTier, ...] = ("device", "host")
    if config.grad_tier != "auto":
        grad_tiers = (config.grad_tier,)
    for tiers in _moved(sizes, placement.tiers):
        keep_grads = needs_kept_grads(spec, config, tiers)
        same = with_same_host_updates(spec, config, placement, tiers)
        same = replace(same, keep_grads=keep_grads, keep_layers=())
        for versions, grad_tier in product(
            _versions(config, same), grad_tiers if keep_grads else ("host",)
        ):
            moved = replace(same, host_versions=versions, grad_tier=grad_tier)
            for on_host in _host_updates(sizes, moved):
                yield with_kept(sizes, config, replace(moved, on_host=on_host), device_limit)


def _versions(config: TrainConfig, placement: Placement) -> tuple[int, ...]:
    """How many versions of what is in host memory there may be."""
    if config.clip_way not in ("auto", "speculative") or not may_guess(config, placement):
        return (1,)
    return (1, 2) if config.clip_way == "auto" else (2,)


def _host_updates(sizes: Sizes, placement: Placement) -> list[tuple[int, ...]]:
    """What the processor may update: as much as before, nothing or all; or what it is asked to."""
    spec, config, tiers = sizes.spec, sizes.config, placement.tiers
    choices = all_on_host(spec, config, tiers)
    if not choices:
        return [asked_on_host(spec, config, tiers, host_versions=placement.host_versions)]
    return sorted({placement.on_host, *choices})


def _moved(sizes: Sizes, tiers: tuple[Tier, ...]) -> Iterator[tuple[Tier, ...]]:
    """The homes themselves, and those after one move."""
    yield tiers
    movable = _movable(sizes, tiers)
    for i, tier in product(movable, may_live(sizes.config)):
        if tier != tiers[i]:
            yield _with(tiers, {i: tier})
    for i, j in combinations(movable, 2):
        if tiers[i] != tiers[j]:
            yield _with(tiers, {i: tiers[j], j: tiers[i]})


def _movable(sizes: Sizes, tiers: Sequence[Tier]) -> list[int]:
    """The first and the last of each stretch of records that are alike and live on one tier."""
    spec = sizes.spec
    count = len(spec.records) - len(spec.of_kind("beside"))
    kinds = [
        (tiers[i], spec.records[i].kind, sizes.state_bytes[i], spec.records[i].base)
        for i in range(count)
    ]
    return [
        i
        for i in range(count)
        if i in (0, count - 1) or not kinds[i - 1] == kinds[i] == kinds[i + 1]
    ]


def _with(tiers: tuple[Tier, ...], changes: dict[int, Tier]) -> tuple[Tier, ...]:
    return tuple(changes.get(i, tier) for i, tier in enumerate(tiers))
