"""Measuring the work on parameters that is no matrix product, on records of a model's own size."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle

import torch

from headrace.storage import DeviceSlab

from .adamw import AdamScalars
from .clip import round_and_square
from .config import TrainConfig
from .layer import param_views
from .measure_memory import MeasuringSizes
from .model import ModelSpec
from .optimizer import adamw_update
from .rates import Work
from .state import StateViews, clear_state, read_weights, state_record, state_views
from .stopwatch import Stopwatch

_LEAST = 256  # elements
_OTHERS = 2**21  # fp32 elements: several times what a core has for itself
SCALARS = AdamScalars(
    beta1=0.9, one_minus_beta1=0.1, beta2=0.999, one_minus_beta2=0.001,
    eps=1e-8, decay=1.0, step_size=1e-5, root_scale=1.0,
)  # fmt: skip


def measure_work(
    spec: ModelSpec, config: TrainConfig, clock: Stopwatch, room: MeasuringSizes
) -> dict[Work, float]:
    """Parameters a second of each work, in the state format and compute dtype of the run.

    On as many records as there is `room` for, in turn, as slots are, and one work after the other:
    what one leaves in a cache, the next one takes. On a processor other numbers pass through its
    own caches before each, as a layer does in a step: the same work again and again takes 0.4 to
    0.8 of its time there.
    """
    layer = spec.of_kind("layer")[0]
    layout = layer if layer.base is None else spec.beside.get(layer.name, layer)
    record = state_record(layout, config.state_format)
    count, device = layout.num_elements, clock.device
    dtype: torch.dtype = getattr(torch, config.compute_dtype)
    copies = room.num_records(layout)
    slab = DeviceSlab(copies * record.padded_bytes, device)
    slots = [slab.carve(record.padded_bytes) for _ in range(copies)]
    for slot in slots:
        clear_state(slot, record)
    states = [state_views(slot, record) for slot in slots]
    sums = [torch.randn(count, device=device) for _ in range(copies)]
    grads = [one.to(dtype) for one in sums]
    factor = torch.ones((), device=device)

    accumulators = [param_views(one, layout) for one in sums]
    values = [param_views(one, layout) for one in grads]

    works: dict[Work, Callable[[int], object]] = {
        "join": lambda i: read_weights(states[i], sums[i]),
        "join_kept": lambda i: read_weights(states[i], torch.empty(count, device=device)),
        "accumulate": lambda i: _accumulate(accumulators[i], values[i]),
        "finish": lambda i: round_and_square(sums[i], _target(sums, grads, i)),
        "update": lambda i: adamw_update(states[i], grads[i], factor, SCALARS),
    }
    times: dict[Work, list[float]] = {work: [] for work in works}
    for call in works.values():
        call(0)
    others = torch.zeros(_OTHERS if device.type == "cpu" else 0)
    order = cycle(range(copies))
    while left := [work for work, each in times.items() if not clock.is_enough(each)]:
        i = next(order)
        for work in left:
            others += 1.0
            times[work].append(clock.once(partial(works[work], i)))
    return {work: count / clock.figure(each) for work, each in times.items()}


def _accumulate(sums: Mapping[str, torch.Tensor], grads: Mapping[str, torch.Tensor]) -> None:
    """A microbatch's gradients to their sums, parameter by parameter as a step does it."""
    for name, value in grads.items():
        sums[name] += value


def least_update() -> Callable[[], None]:
    """What updates a state of next to no elements: the calls that a visit makes beside its bytes.

    Some twenty microseconds on a processor when it is done again at once, and ten times as long
    when other work has filled the caches in between.
    """
    kept, zeros = torch.zeros(_LEAST, dtype=torch.bfloat16), torch.zeros(_LEAST)
    state = StateViews(kept, torch.zeros(_LEAST, dtype=torch.int16), zeros, zeros.clone())
    grad, factor = zeros.clone(), torch.ones(())
    return lambda: adamw_update(state, grad, factor, SCALARS)


def _target(sums: Sequence[torch.Tensor], grads: Sequence[torch.Tensor], i: int) -> torch.Tensor:
    """Where a finished gradient goes: in fp32 compute it stays where it was summed."""
    return sums[i] if grads[i].dtype == torch.float32 else grads[i]
