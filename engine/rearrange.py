"""A chosen placement with the same shares elsewhere in the order of a step. Pure.

Which layers are the far ones matters as much as how many: what lives in host memory at the very
beginning of the order has its last transfers and updates when backward has ended and the next
forward pass waits for them; with layers of the device on both sides they pass beside computing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, product
from math import inf

from .additions import with_kept
from .home_choices import MIN_SLOTS, all_parked, repeat
from .homes import Placement, Tier
from .host_share import other_host_updates, with_same_host_updates
from .sizes import Sizes

_PARTS = 8  # the far records are tried at so many places in the order, and at its end
_ROUNDS = 3
_NUM_PLAYED, _PLAYED_RECORDS = 6, 600  # of each kind of change: more of a model of few records
_LEAST_GAIN = 0.002  # less than what a prediction is good for changes nothing


def rearranged(
    sizes: Sizes,
    placement: Placement,
    *,
    device_limit: int,
    host_limit: int,
    about: Callable[[Placement], float],
    seconds: Callable[[Placement, float], float],
) -> tuple[float, Placement]:
    """Seconds of a step and the placement, its far records moved to where the step is shortest.

    One kind of change at a time, the best of each kind, until none shortens the step: where in the
    order the far records begin, which of them the processor updates, where layer inputs wait, one
    kept layer or one slot more or less. What `about` finds best is held against each other by
    `seconds`, which is told from how many on they are of no use. All of them stay within the limits
    (bytes). A strategy's rule says all of it already, so this is for plans that are free.
    """
    best = seconds(placement, inf), placement
    if sizes.config.device != "cuda" or sizes.config.strategy != "auto":
        return best

    def fits(one: Placement) -> bool:
        return sizes.device(one) <= device_limit and sizes.host(one) <= host_limit

    def begun_elsewhere() -> Iterator[Placement]:
        for moved in _begun_elsewhere(sizes, best[1]):
            yield moved
            yield with_kept(sizes, sizes.config, moved, device_limit)
            if sizes.config.recompute == "auto":
                yield replace(moved, keep_layers=())

    def other_updates() -> Iterator[Placement]:
        return other_host_updates(sizes.spec, sizes.config, best[1])

    def inputs_elsewhere() -> Iterator[Placement]:
        for moved in _inputs_elsewhere(sizes, best[1]):
            yield moved
            yield with_kept(sizes, sizes.config, moved, device_limit)

    def other_room() -> Iterator[Placement]:
        return _other_room(sizes, best[1])

    most = max(_NUM_PLAYED, _PLAYED_RECORDS // len(placement.tiers))
    for _ in range(_ROUNDS):
        before = best[0]
        for variants in (begun_elsewhere, other_updates, inputs_elsewhere, other_room):
            found = sorted(dict.fromkeys(one for one in variants() if fits(one)), key=about)[:most]
            best = _shortest(found, seconds, best)
        if best[0] == before:
            break
    return best


def _shortest(
    placements: Sequence[Placement],
    seconds: Callable[[Placement, float], float],
    best: tuple[float, Placement],
) -> tuple[float, Placement]:
    """The shortest of the placements where it is worth it, or the `best` so far."""
    least = best[0] * (1 - _LEAST_GAIN)
    for one in placements:
        taken = seconds(one, least)
        if taken < least:
            least, best = taken, (taken, one)
    return best


def _begun_elsewhere(sizes: Sizes, placement: Placement) -> Iterator[Placement]:
    """The far records after 0, 1, … of eight parts of the others; as many as take the memory of
    those that are far now, one more or one less, through as many slots or a few more."""
    count = len(placement.tiers) - len(sizes.spec.of_kind("beside"))
    homes, beside = placement.tiers[:count], placement.tiers[count:]
    far = _far(homes)
    room = sum(sizes.state_bytes[i] for i in far)
    if not far or len(far) == count or placement.cached:
        return
    for part in range(_PARTS + 1):
        start = round((count - len(far)) * part / _PARTS)
        fitting = _num_fitting(sizes.state_bytes[start:count], room)
        for size in {max(1, fitting - 1), fitting, fitting + 1}:
            window = _resized([homes[i] for i in far], size)
            if start + size <= count and set(window) == {homes[i] for i in far}:
                near = repeat("device", count - start - size)
                tiers = (*repeat("device", start), *window, *near, *beside)
                if tiers != placement.tiers:
                    moved = with_same_host_updates(sizes.spec, sizes.config, placement, tiers)
                    for more in (0,) if sizes.config.num_slots is not None else (0, 1, 2):
                        yield replace(moved, num_slots=placement.num_slots + more)


def _far(tiers: Sequence[Tier]) -> list[int]:
    return [i for i, tier in enumerate(tiers) if tier != "device"]


def _num_fitting(sizes: Sequence[int], room: int) -> int:
    """How many, from the first, take no more than `room` bytes."""
    ends = accumulate(sizes)
    return sum(1 for end in ends if end <= room)


def _resized(far: list[Tier], size: int) -> list[Tier]:
    """So many homes: more of the nearest, or fewer of it and then of the others."""
    return far[:size] + [far[-1]] * (size - len(far))


def _inputs_elsewhere(sizes: Sizes, placement: Placement) -> Iterator[Placement]:
    """Layer inputs all on the device or all in host memory, where they are in one of the two."""
    now = set(placement.activation_tiers)
    if sizes.config.activation_tier == "auto" and len(now) == 1 and "nvme" not in now:
        other: Tier = "host" if now == {"device"} else "device"
        yield replace(placement, activation_tiers=all_parked(sizes.spec, other))


def _other_room(sizes: Sizes, placement: Placement) -> Iterator[Placement]:
    """One slot, or one layer that is kept whole, more or less."""
    num_layers, kept = sizes.spec.num_layers, len(placement.keep_layers)
    slots = (0,) if sizes.config.num_slots is not None else (-1, 0, 1)
    layers = (0,) if sizes.config.recompute != "auto" else (-1, 0, 1)
    for more_slots, more_kept in product(slots, layers):
        count, keep = placement.num_slots + more_slots, kept + more_kept
        if (more_slots or more_kept) and count >= MIN_SLOTS and 0 <= keep <= num_layers:
            keeping = tuple(range(num_layers - keep, num_layers))
            yield replace(placement, num_slots=count, keep_layers=keeping)
