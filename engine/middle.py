"""One figure of several: what was measured in rounds, taken figure by figure. Pure, no torch.

A processor that others share is faster in one second and slower in the next, by a third and more.
Figures that were taken one after the other would each be of another such second, and a plan made of
them of none. So each is taken once a round, and the middle one of the rounds counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import TypeVar

from .rates import LayerRate, Rates, ShapeRates

K = TypeVar("K")


def middle_box(rounds: Sequence[Rates]) -> Rates:
    """The middle of what `measure_box` found: copies, memory, visits and the processor's work."""
    return replace(
        rounds[-1],
        h2d=median(one.h2d for one in rounds),
        d2h=median(one.d2h for one in rounds),
        both=_middle(one.both for one in rounds),
        host_memory=median(one.host_memory for one in rounds),
        device_memory=median(one.device_memory for one in rounds),
        visit_seconds=median(one.visit_seconds for one in rounds),
        work=_middle_work(one.work for one in rounds),
    )


def middle_shape(rounds: Sequence[ShapeRates]) -> ShapeRates:
    """The middle of what `measure_shape` found; of sizes that not every round came to, none."""
    sizes = [{rate.tokens: rate for rate in one.layers} for one in rounds]
    common = [tokens for tokens in sizes[0] if all(tokens in known for known in sizes)]
    return replace(
        rounds[-1],
        layers=tuple(_middle_layer([known[tokens] for known in sizes]) for tokens in common),
        head_flops=median(one.head_flops for one in rounds),
        work=_middle_work(one.work for one in rounds),
    )


def _middle_layer(rounds: Sequence[LayerRate]) -> LayerRate:
    return replace(
        rounds[-1],
        forward_flops=median(one.forward_flops for one in rounds),
        backward_flops=median(one.backward_flops for one in rounds),
        kept_forward_flops=_middle(one.kept_forward_flops for one in rounds),
        kept_backward_flops=_middle(one.kept_backward_flops for one in rounds),
    )


def _middle(rounds: Iterable[float | None]) -> float | None:
    known = [one for one in rounds if one is not None]
    return median(known) if known else None


def _middle_work(rounds: Iterable[Mapping[K, float]]) -> dict[K, float]:
    found = list(rounds)
    return {work: median(one[work] for one in found) for work in found[0]}
