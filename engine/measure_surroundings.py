"""What lies about a layer while it is timed: other layers, and what a step does between two."""

from collections import deque
from itertools import cycle

import torch
from torch import Tensor

from .layer import LayerModule, Weights, param_views
from .layer_graph import Grads
from .measure_memory import layer_records
from .model import ModelSpec
from .rates import Work
from .stopwatch import Stopwatch


class Surroundings:
    """What lies about a layer's visit in a step, on a processor: other layers' weights, inputs that
    wait, gradients that are summed, as many bytes of state as a record has. On a GPU nothing.

    `copies` of the weights take turns; with one of them, nothing lies about.
    """

    def __init__(
        self,
        spec: ModelSpec,
        module: LayerModule,
        clock: Stopwatch,
        dtype: torch.dtype,
        copies: int,
    ) -> None:
        count, device = sum(one.num_elements for one in layer_records(spec)), clock.device
        self._apart = copies > 1
        self._clock = clock
        self._weights = cycle([_random_weights(spec, module, device, dtype) for _ in range(copies)])
        self._kept: deque[Tensor] = deque(maxlen=copies)
        self._grads: Grads = {}
        self._sums = torch.zeros(count if self._apart else 0, device=device)
        self._state = torch.zeros(3 * count if self._apart else 0, device=device)
        self._summing: list[float] = []
        self._num_summed = 0  # elements of a layer's gradients

    def next_weights(self) -> Weights:
        """Those of the layer whose turn it is."""
        return next(self._weights)

    def keep(self, hidden: Tensor, grads: Grads | None = None) -> None:
        """Hold what a layer made as long as a step does: `hidden` (rows, tokens, width) and the
        gradients of its parameters, by name, until the next layer."""
        if self._apart:
            self._kept.append(hidden)
            self._grads = grads or {}

    def between(self) -> None:
        """What a step does between two layers. Only the summing of gradients is timed."""
        if self._grads:
            self._num_summed = sum(value.numel() for value in self._grads.values())
            self._summing.append(self._clock.once(self._sum))
        self._state += 1.0

    def accumulate(self) -> dict[Work, float]:
        """Elements a second of gradients that were summed and let go behind their layer; nothing
        where no layer left any."""
        if not self._summing:
            return {}
        return {"accumulate": self._num_summed / self._clock.figure(self._summing)}

    def _sum(self) -> None:
        """Add the last gradients to their sums. Their pages go back to the system."""
        start = 0
        for value in self._grads.values():
            self._sums[start : start + value.numel()] += value.reshape(-1)
            start += value.numel()
        self._grads = {}


def _random_weights(
    spec: ModelSpec, module: LayerModule, device: torch.device, dtype: torch.dtype
) -> Weights:
    weights: Weights = {}
    for record in layer_records(spec):
        flat = torch.empty(record.num_elements, dtype=dtype, device=device).normal_(0, 0.02)
        weights = {**weights, **param_views(flat, record)}
    return module.leaves(spec.of_kind("layer")[0], weights)
