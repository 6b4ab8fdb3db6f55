"""One figure of several: what was measured in rounds, taken figure by figure. Pure, no torch.

A processor that others share is faster in one second and slower in the next, by a third and more.
Figures that were taken one after the other would each be of another such second, and a plan made of
them of none. So each is taken once a round, and the middle one of the rounds counts. Of what a
model's layers take it is their mean, in seconds, without rounds that took more than twice as long
as the middle one: a step is the sum of dozens of such figures, in slow and in fast tenths of a
second, and the slow ones are further from the middle than the fast ones. Where other work held up
all rounds, the best of each counts: what the box can do, and not what was left.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import harmonic_mean, mean, median, median_high, median_low
from typing import TypeVar

from .rates import LayerRate, Rates, ShapeRates

K = TypeVar("K")
OneOf = Callable[[Sequence[float]], float]


def box_of_rounds(rounds: Sequence[Rates], *, best: bool = False) -> Rates:
    """The middle of what `measure_box` found, or the best of each: copies, memory, visits and the
    processor's work."""
    one_of = max if best else median
    return replace(
        rounds[-1],
        h2d=one_of([one.h2d for one in rounds]),
        d2h=one_of([one.d2h for one in rounds]),
        both=_known((one.both for one in rounds), one_of),
        host_memory=one_of([one.host_memory for one in rounds]),
        device_memory=one_of([one.device_memory for one in rounds]),
        visit_seconds=(min if best else median)([one.visit_seconds for one in rounds]),
        work=_works((one.work for one in rounds), one_of),
    )


def shape_of_rounds(rounds: Sequence[ShapeRates], *, best: bool = False) -> ShapeRates:
    """The mean of what `measure_shape` found, or the best; of sizes that not every round came to,
    none."""
    one_of = max if best else _mean_rate
    sizes = [{rate.tokens: rate for rate in one.layers} for one in rounds]
    common = [tokens for tokens in sizes[0] if all(tokens in known for known in sizes)]
    return replace(
        rounds[-1],
        layers=tuple(_layer([known[tokens] for known in sizes], one_of) for tokens in common),
        head_flops=one_of([one.head_flops for one in rounds]),
        visit_seconds=(min if best else _mean_seconds)([one.visit_seconds for one in rounds]),
        work=_works((one.work for one in rounds), one_of),
    )


def _mean_rate(rates: Sequence[float]) -> float:
    """The rate of what took the mean of the seconds that these tell, without those of more than
    twice the middle; of an even number, the longer one in the middle."""
    least = median_low(rates) / 2
    return harmonic_mean([rate for rate in rates if rate >= least])


def _mean_seconds(seconds: Sequence[float]) -> float:
    """Likewise of seconds."""
    most = 2 * median_high(seconds)
    return mean(one for one in seconds if one <= most)


def _layer(rounds: Sequence[LayerRate], one_of: OneOf) -> LayerRate:
    return replace(
        rounds[-1],
        forward_flops=one_of([one.forward_flops for one in rounds]),
        backward_flops=one_of([one.backward_flops for one in rounds]),
        kept_forward_flops=_known((one.kept_forward_flops for one in rounds), one_of),
        kept_backward_flops=_known((one.kept_backward_flops for one in rounds), one_of),
    )


def _known(rounds: Iterable[float | None], one_of: OneOf) -> float | None:
    known = [one for one in rounds if one is not None]
    return one_of(known) if known else None


def _works(rounds: Iterable[Mapping[K, float]], one_of: OneOf) -> dict[K, float]:
    found = list(rounds)
    return {work: one_of([one[work] for one in found]) for work in found[0]}
