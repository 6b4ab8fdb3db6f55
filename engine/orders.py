"""The order of a whole step: layer by layer, or microbatch by microbatch. Pure.

Layer by layer, each for every microbatch, is the order in which weights cross the link twice a
step, whatever the batch; it is visits.py's. Microbatch by microbatch is that of systems that run
a model's forward and backward as they are: weights cross twice for each microbatch, and
gradients are summed in host memory.
"""

from collections.abc import Collection

from .homes import Placement, Way
from .model import ModelSpec
from .visits import Action, Visit, step_visits, update_visit


def ordered_visits(
    spec: ModelSpec, placement: Placement, way: Way, *, pending: bool, microbatches: int
) -> list[Visit]:
    """The visits of a step of so many microbatches in the placement's order."""
    if placement.order == "microbatches":
        assert way == "serial", way
        return _by_microbatch(spec, microbatches)
    return step_visits(
        spec,
        placement.tiers,
        placement.keep_layers,
        way,
        pending=pending,
        num_slots=placement.num_slots,
        on_host=placement.on_host,
        early_records=placement.early(way),
        cached=placement.cached,
    )


def last_record(spec: ModelSpec, placement: Placement, way: Way, early: Collection[int]) -> int:
    """The record of the last of a step's visits (`ordered_visits`); `early` is placement.early."""
    of, on_host = spec.indices, placement.on_host
    if of["beside"] and placement.order == "layers":
        return of["beside"][-1]
    if way != "deferred":
        order = (*reversed(of["embedding"]), *of["layer"], *of["norm"], *reversed(of["head"]))
        for i in order:
            if i in spec.trained_indices and i not in early and i not in on_host:
                return i
    late = [i for i in on_host if i not in early]
    if late:
        return max(late)
    tables = [i for i in of["embedding"] if i in early]
    last_layers = of["layer"][spec.first_backward_layer :][:1]
    heads = [i for i in of["head"] if i in early]
    return [*of["norm"], *heads, *last_layers, *tables][-1]


def _by_microbatch(spec: ModelSpec, microbatches: int) -> list[Visit]:
    """Forward and backward of one microbatch after the other, then every update."""
    index = {record.name: i for i, record in enumerate(spec.records)}
    embed, layers, norm, head = (
        [index[record.name] for record in spec.of_kind(kind)]
        for kind in ("embedding", "layer", "norm", "head")
    )
    visits: list[Visit] = []
    for m in range(microbatches):
        visits += [_of(i, "load_table", m) for i in embed]
        visits += [_of(i, "forward", m) for i in layers]
        visits += [_of(i, "load_head", m) for i in head]
        visits += [_of(i, "head", m) for i in norm]
        visits += [_of(i, "backward", m) for i in reversed(layers)]
    return visits + [update_visit(i) for i in (*head, *norm, *reversed(layers), *embed)]


def _of(record: int, action: Action, microbatch: int) -> Visit:
    return Visit(
        record=record,
        action=action,
        reads="weights",
        writes=False,
        phase="backward" if action in ("head", "backward") else "forward",
        microbatch=microbatch,
    )
