"""The optimizer in the background: records in host memory are updated where they live.

One thread takes the updates in order and shares each among the cores in long ranges without
Python's lock, so that the thread that feeds the GPU goes on. Only the gradient comes down to such
a record, and only its weights go up again.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Self

import torch
from torch import Tensor

from headrace.storage import Fence

from .adamw import AdamScalars
from .adamw_cpu import adamw_cpu
from .cores import usable_cores
from .ranges import RangePool
from .state import RecordViews, StateViews, split_master, state_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptimizerStats:
    """What was done since the start. Bytes are those of memory traffic: the gradient, the state
    twice, or three times (the place of a second version is read before it is written)."""

    num_updates: int = 0
    num_elements: int = 0
    traffic_bytes: int = 0
    busy_seconds: float = 0.0


class HostOptimizer:
    """Updates records in host memory, in the background and in order; a context manager."""

    def __init__(self, num_threads: int | None = None) -> None:
        """Start `num_threads` threads; by default one core is left to who feeds the device."""
        cores = usable_cores()
        self._ranges = RangePool(num_threads or (cores - 1 if cores > 2 else cores), "host-adamw")
        self._order = ThreadPoolExecutor(1, "host-optimizer")
        self._stats = HostOptimizerStats()

    @property
    def num_threads(self) -> int:
        """Threads that share an update."""
        return self._ranges.num_threads

    @property
    def stats(self) -> HostOptimizerStats:
        """Updates that are through."""
        return self._stats

    def submit(
        self,
        state: RecordViews,
        grad: Tensor,
        factor: float | Tensor,
        scalars: AdamScalars,
        *,
        source: RecordViews | None = None,
        after: Fence | None = None,
        then: Callable[[], None] | None = None,
    ) -> Future[None]:
        """Update `state` with `grad * factor`, once `after` (the gradient's copy) is reached, and
        do what is to be done `then`. `source` is the state before where that is to stay as it is.

        A `factor` on a device is waited for in the background. All other tensors are in host
        memory and may be neither changed, read nor freed before the future is done. It holds the
        exception when the copy or the update failed; what it was asked later is tried all the same.
        """
        return self._order.submit(self._update, state, grad, factor, scalars, source, after, then)

    def _update(
        self,
        state: RecordViews,
        grad: Tensor,
        factor: float | Tensor,
        scalars: AdamScalars,
        source: RecordViews | None,
        after: Fence | None,
        then: Callable[[], None] | None,
    ) -> None:
        if after is not None:
            after.wait()
        scale = float(factor)
        started = perf_counter()
        adamw_cpu(state, grad, scale, scalars, pool=self._ranges, source=source)
        seconds = perf_counter() - started
        one, count = self._stats, grad.numel()
        moved = 2 if source is None else 3
        self._stats = HostOptimizerStats(
            num_updates=one.num_updates + 1,
            num_elements=one.num_elements + count,
            traffic_bytes=one.traffic_bytes + moved * state_bytes(state) + grad.nbytes,
            busy_seconds=one.busy_seconds + seconds,
        )
        if then is not None:
            then()

    def close(self) -> None:
        """Wait for the updates under way and end the threads."""
        self._order.shutdown()
        self._ranges.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def measure_cpu_optimizer(
    seconds: float = 0.3, *, num_elements: int = 2**24, aside: bool = False, least: int = 5
) -> float:
    """Parameters a second that a HostOptimizer updates here, with gradients in bf16; in place or
    `aside`, into a second version.

    The middle one of `least` updates or more: one that was held up shall not speak for all. Takes
    about `seconds` and 14 bytes for each of `num_elements`, more than the caches hold; 26 aside.
    """
    state = _some_state(num_elements)
    source = _some_state(num_elements) if aside else None
    grad = torch.full((num_elements,), 0.5, dtype=torch.bfloat16)
    scalars = AdamScalars(
        beta1=0.9, one_minus_beta1=0.1, beta2=0.999, one_minus_beta2=0.001,
        eps=1e-8, decay=1.0, step_size=1e-5, root_scale=1.0,
    )  # fmt: skip
    rates: list[float] = []
    with HostOptimizer() as optimizer:
        # The first one touches the memory.
        optimizer.submit(state, grad, 1.0, scalars, source=source).result()
        ends = perf_counter() + seconds
        while perf_counter() < ends or len(rates) < least:
            before = optimizer.stats.busy_seconds
            optimizer.submit(state, grad, 1.0, scalars, source=source).result()
            rates.append(num_elements / (optimizer.stats.busy_seconds - before))
    return sorted(rates)[len(rates) // 2]


def _some_state(num_elements: int) -> StateViews:
    state = StateViews(
        torch.empty(num_elements, dtype=torch.bfloat16),
        torch.empty(num_elements, dtype=torch.int16),
        torch.zeros(num_elements),
        torch.zeros(num_elements),
    )
    split_master(torch.ones(num_elements), state.hi, state.lo)
    return state
