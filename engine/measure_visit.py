"""Measuring what the ring itself takes: a visit that moves nothing and computes nothing."""

from collections.abc import Callable
from contextlib import closing
from statistics import median
from time import perf_counter

from .home_choices import DEFAULT_SLOTS
from .pipeline import Pipeline
from .visits import Visit, update_visit

_VISITS, _ROUNDS = 64, 5


class _Nothing:
    """Stages in which nothing is done."""

    def needs_slot(self, visit: Visit) -> bool:
        return True

    def read(self, visit: Visit, slot: int) -> None:
        """Nothing comes."""

    def release(self, visit: Visit, slot: int) -> Callable[[], None]:
        return _nothing


def measure_visit() -> float:
    """Seconds of the ring for one visit: handing it from thread to thread, and the waking up."""
    visits = [update_visit(i) for i in range(_VISITS)]
    rounds = []
    with closing(Pipeline(list(range(DEFAULT_SLOTS)), _Nothing())) as ring:
        for _ in range(_ROUNDS):
            started = perf_counter()
            ring.run(visits, lambda visit, slot: None)
            rounds.append(perf_counter() - started)
    return median(rounds) / _VISITS


def _nothing() -> None:
    """What is left of a write that was none."""
