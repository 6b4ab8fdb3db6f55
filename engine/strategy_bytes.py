"""What a strategy must move in a step, from parameter counts alone, to hold counters to. Pure.

Nothing of the plan's own sums is used here, so that a table which holds the counters to this
formula says something.
"""

from dataclasses import dataclass
from math import prod

from headrace.storage import DTYPE_BYTES

from .config import TrainConfig
from .homes import Placement, Way
from .model import ModelSpec
from .strategies import STRATEGIES

STATE_BYTES = 12  # of an exact parameter: the fp32 master in two halves and two fp32 moments
SUM_BYTES = 4  # of a gradient's sum in fp32
# ZeRO-Infinity's buffers by DeepSpeed's defaults: five for parameters, each as large as the largest
# one, and four for the optimizer, each of a sub-group of so many elements in fp32.
_PARAM_BUFFERS, _PARAM_BYTES = 5, 2
_OPTIMIZER_BUFFERS, _SUB_GROUP, _OPTIMIZER_BYTES = 4, 10**9, 4
_SLOTS_TO_HOLD = 3  # from so many on, the last layer stays in its slot where forward turns around

Links = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Parameters by what happens to them: those of records that do not live on the device.

    `recomputed`: of layers whose weights backward wants again; `turn`: of the layer that stays in
    its slot between the passes, `turn_again` if backward wants its weights; `updated_on_host`: of
    layers that the processor updates.
    """

    embedding: int
    layers: int
    norm: int
    head: int
    recomputed: int
    turn: int
    turn_again: int
    updated_on_host: int

    @property
    def all(self) -> int:
        """Every parameter that is streamed."""
        return self.embedding + self.layers + self.norm + self.head

    @property
    def with_kept_gradient(self) -> int:
        """Those whose gradient goes to host memory: the embedding's waits in its accumulator."""
        return self.all - self.embedding


def formula_bytes(
    spec: ModelSpec,
    config: TrainConfig,
    placement: Placement,
    *,
    way: Way,
    redone: bool,
    microbatches: int,
) -> Links:
    """Payload bytes of one step by link. `redone`: a bet on no clipping was lost.

    For exact state, with all streamed state on one tier and kept gradients in host memory.
    """
    weight = gradient = DTYPE_BYTES[config.compute_dtype]
    moved = _count(spec, placement)
    strategy = STRATEGIES[config.strategy]
    if strategy.order == "microbatches":
        up, down, grads_up, grads_down = _by_microbatch(moved, weight, gradient, microbatches)
    elif strategy.caches_weights or moved.updated_on_host:
        up, down, grads_up, grads_down = _updated_late(
            moved, weight, gradient, cached=strategy.caches_weights
        )
    else:
        up, down, grads_up, grads_down = _by_layer(moved, weight, gradient, way, redone)
    on_drive = "nvme" in placement.tiers
    return {
        "nvme_read": up if on_drive else 0,
        "nvme_write": down if on_drive else 0,
        "h2d": up + grads_up,
        "d2h": down + grads_down,
    }


def _count(spec: ModelSpec, placement: Placement) -> Moved:
    homes = list(zip(spec.records, placement.tiers, strict=True))
    far = {
        kind: sum(
            record.num_params for record, tier in homes if tier != "device" and record.kind == kind
        )
        for kind in ("embedding", "layer", "norm", "head")
    }
    layers = [(record, tier) for record, tier in homes if record.kind == "layer"]
    again = sum(
        record.num_params
        for i, (record, tier) in enumerate(layers)
        if tier != "device" and i not in placement.keep_layers
    )
    last, last_tier = layers[-1]
    held = placement.num_slots >= _SLOTS_TO_HOLD and last_tier != "device"
    again_too = held and len(layers) - 1 not in placement.keep_layers
    on_host = sum(spec.records[i].num_params for i in placement.on_host)
    return Moved(
        embedding=far["embedding"],
        layers=far["layer"],
        norm=far["norm"],
        head=far["head"],
        recomputed=again,
        turn=last.num_params if held else 0,
        turn_again=last.num_params if again_too else 0,
        updated_on_host=on_host,
    )


Bytes = tuple[float, float, float, float]  # state up, state down, gradients up, gradients down


def _by_layer(moved: Moved, weight: int, gradient: int, way: Way, redone: bool) -> Bytes:
    """Every microbatch through a layer: weights twice a step, and the update."""
    state = STATE_BYTES * moved.all
    grads = gradient * moved.with_kept_gradient
    forward = weight * (moved.embedding + moved.layers + moved.head)
    if way == "serial":
        again = weight * (moved.norm + moved.recomputed - moved.turn_again)
        return forward + again + state, state, grads, grads
    # The state is read where backward is; of the layer that stayed, what is not there yet.
    once = forward + state - weight * moved.turn
    if redone:
        return once + state, 2 * state, grads, grads
    return once, state, 0, grads


def _updated_late(moved: Moved, weight: int, gradient: int, *, cached: bool) -> Bytes:
    """Layers updated by the processor, whose state never moves, and the rest on the device."""
    rest = moved.all - moved.updated_on_host
    state = STATE_BYTES * rest
    grads = gradient * moved.with_kept_gradient
    grads_up = gradient * (moved.with_kept_gradient - moved.updated_on_host)
    if cached:  # weights go up once, when the processor has updated them
        return state + weight * moved.updated_on_host, state, grads_up, grads
    twice = moved.embedding + moved.layers + moved.head + moved.norm
    up = weight * (twice + moved.recomputed - moved.turn_again)
    return up + state, state, grads_up, grads


def _by_microbatch(moved: Moved, weight: int, gradient: int, microbatches: int) -> Bytes:
    """Every layer for a microbatch: weights twice for each, sums to host memory in between."""
    once = moved.embedding + 2 * moved.layers + moved.head + moved.norm
    state = STATE_BYTES * moved.all
    grads = gradient * moved.with_kept_gradient
    sums = SUM_BYTES * moved.layers * (microbatches - 1)
    return microbatches * weight * once + state, state, grads + sums, grads + sums


def common_staging_bytes(spec: ModelSpec) -> int:
    """Host memory for staging where every buffer is as large as the largest tensor of all, by the
    rule that MemAscend (2025) measures itself against."""
    largest = max(prod(param.full_shape) for record in spec.records for param in record.params)
    group = min(spec.num_params, _SUB_GROUP)
    buffers = _PARAM_BUFFERS * _PARAM_BYTES * largest
    return buffers + _OPTIMIZER_BUFFERS * _OPTIMIZER_BYTES * group
