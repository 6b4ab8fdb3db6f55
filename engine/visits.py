"""The order of a step: which record is visited when, what is read, done and written. Pure."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from headrace.storage import RecordSpec

from .config import TrainConfig
from .homes import Tier, Way
from .model import ModelSpec, RecordLayout
from .report import LINKS
from .state_record import state_payload_bytes, state_record, weight_names

Action = Literal["load_table", "forward", "load_head", "head", "backward", "update", "catch_up"]
Reads = Literal["nothing", "weights", "state", "rest"]  # rest: state without the weights
Phase = Literal["forward", "backward", "optimizer"]

SLOTS_TO_HOLD_ONE = 3  # with fewer, a held slot would leave none to read ahead into


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One layer (or table piece) in one pass: what is read, done and written.

    `record` indexes ModelSpec.records. `committed` reads the last commit, whatever was written
    since: the second try of a speculative update starts from there. `pending`: before anything
    else, the record is updated with the gradient of the step before; in a `catch_up` that is all.
    `holds`: the record stays in its slot for its next visit, which is `held`. `on_host`: the
    processor updates the record in host memory, in the background, and nothing of it is moved.
    `microbatch`: the only one that is computed on; None: all.
    """

    record: int
    action: Action
    reads: Reads
    writes: bool
    phase: Phase
    committed: bool = False
    pending: bool = False
    holds: bool = False
    held: bool = False
    on_host: bool = False
    microbatch: int | None = None


def step_visits(
    spec: ModelSpec,
    tiers: Sequence[Tier],
    keep_layers: Sequence[int],
    way: Way,
    *,
    pending: bool,
    num_slots: int,
    on_host: Collection[int] = (),
    early_records: Collection[int] = (),
    cached: Collection[int] = (),
) -> list[Visit]:
    """The order of one step.

    Forward over embedding and layers, the head, backward over the layers, last first, then the
    embedding. The `early_records` are updated in their backward visit (Placement.early); every
    other record is updated after the last backward visit, when the norm is known, or, when
    the way is deferred, in the next step's first visit to it. `pending`: there is such an update.
    Those in `on_host` are updated in host memory: early ones when their gradient is there, the
    others as soon as the norm is known, in the order in which forward will want them. Weights of
    those in `cached` are on the device, so that only their update moves anything. The last layer,
    where forward turns around, stays in its slot when there are enough of them. A frozen record is
    only read; what lies beside it is on the device, updated at the step's end.
    """
    trained, there = spec.trained_indices, set(cached)
    early_there = set(on_host).intersection(early_records)
    owed = trained.difference(on_host) if pending else set()
    embed, layers, head = (spec.indices[kind] for kind in ("embedding", "layer", "head"))
    (norm,) = spec.indices["norm"]
    kept = {layers[i] for i in keep_layers}

    def gradient(i: int, action: Action, weights_needed: bool) -> Visit:
        early = i in early_records and i not in early_there
        reads: Reads = "state" if early else "weights" if weights_needed else "nothing"
        return _visit(i, action, "backward", reads, early)

    def forward(i: int, action: Action) -> Visit:
        due = i in owed
        return _visit(i, action, "forward", "state" if due else "weights", due, due)

    visits = [forward(i, "load_table") for i in embed]
    visits += [forward(i, "forward") for i in layers]
    visits += [forward(i, "load_head") for i in head]
    visits += [forward(norm, "catch_up")] if norm in owed else []
    visits += [gradient(norm, "head", True)]
    visits += [gradient(i, "update", False) for i in head if i in early_records]
    for i in reversed(layers[spec.first_backward_layer :]):
        visits.append(gradient(i, "backward", i not in kept))
        if i in early_there:
            visits.append(host_update_visit(i, phase="backward"))
    visits += [gradient(i, "update", False) for i in embed if i in early_records]
    if there:
        visits = [_with_cached(visit) if visit.record in there else visit for visit in visits]
    if num_slots >= SLOTS_TO_HOLD_ONE and tiers[layers[-1]] != "device":
        visits = _held_at_turn(visits, layers[-1])
    late_there = sorted(set(on_host).difference(early_records))
    visits += [host_update_visit(i, cached=i in there) for i in late_there]
    return visits + _late_updates(spec, trained.difference(early_records, on_host), way)


@cache
def _visit(
    record: int, action: Action, phase: Phase, reads: Reads, writes: bool, pending: bool = False
) -> Visit:
    """Visits that are equal are one object: a plan weighs thousands of steps of the same visits."""
    return Visit(
        record=record, action=action, phase=phase, reads=reads, writes=writes, pending=pending
    )


def _late_updates(spec: ModelSpec, left: Collection[int], way: Way) -> list[Visit]:
    """Updates of `left` when the norm is known, unless deferred; then what is beside layers."""
    left = () if way == "deferred" else left
    of = spec.indices
    order = (*of["head"], *of["norm"], *reversed(of["layer"]), *of["embedding"])
    return [update_visit(i) for i in (*[i for i in order if i in left], *of["beside"])]


@cache
def _with(visit: Visit, **changes: Any) -> Visit:
    """The same visit but for these fields, as one object like all others."""
    return replace(visit, **changes)


def _with_cached(visit: Visit) -> Visit:
    """The same visit, the weights of its record being on the device."""
    return _with(visit, reads="nothing") if visit.reads == "weights" else visit


def _held_at_turn(visits: Sequence[Visit], record: int) -> list[Visit]:
    """The same visits, the record staying in its slot from its forward to its backward visit."""
    if all(v.reads == "nothing" for v in visits if v.record == record and v.phase == "backward"):
        return list(visits)
    return [
        visit
        if visit.record != record or visit.on_host
        else _with(visit, holds=True)
        if visit.action == "forward"
        else _with(visit, held=True, reads="rest" if visit.reads == "state" else "nothing")
        for visit in visits
    ]


def pending_visits(spec: ModelSpec, on_host: Collection[int] = ()) -> list[Visit]:
    """Every record whose update is pending (none of `on_host` is) updated with the gradient of the
    last step, before a commit or an evaluation."""
    pending = [
        i
        for i, record in enumerate(spec.records)
        if record.base is None and record.kind != "beside" and i not in on_host
    ]
    return [_with(update_visit(i), pending=True) for i in pending]


def write_order(visits: Sequence[Visit]) -> list[int | None]:
    """For each visit, the last earlier one that writes its record: that is read after it."""
    last: dict[int, int] = {}
    order = []
    for i, visit in enumerate(visits):
        order.append(last.get(visit.record))
        if visit.writes:
            last[visit.record] = i
    return order


def num_ahead(visits: Sequence[Visit], num_slots: int, takes_slot: Callable[[Visit], bool]) -> int:
    """How many of a pass's first visits can be read before it begins: those that slots can hold.

    Up to the first that needs what computing an earlier one of them leaves, its write or its slot:
    who drops what was read ahead would wait for that for ever.
    """
    used, left = 0, set[int]()
    for i, visit in enumerate(visits):
        if takes_slot(visit):
            used += 1
            if used > num_slots or visit.record in left:
                return i
        if visit.writes or visit.on_host or visit.holds:
            left.add(visit.record)
    return len(visits)


@cache
def update_visit(record: int, *, committed: bool = False) -> Visit:
    """A visit that updates a record from its kept gradient."""
    return Visit(
        record=record,
        action="update",
        reads="state",
        writes=True,
        phase="optimizer",
        committed=committed,
    )


@cache
def host_update_visit(
    record: int, *, phase: Phase = "optimizer", cached: bool = False, committed: bool = False
) -> Visit:
    """A visit that has the processor update a record in host memory from its kept gradient.

    In backward it is made before the norm is known. Weights that are `cached` on the device are
    read there when it is done.
    """
    return Visit(
        record=record,
        action="update",
        reads="weights" if cached else "nothing",
        writes=False,
        phase=phase,
        committed=committed,
        on_host=True,
    )


def redo_visits(early_records: Collection[int], on_host: Collection[int] = ()) -> list[Visit]:
    """The second try of a speculative step: every early update again, from the state before it."""
    return [
        (host_update_visit if i in on_host else update_visit)(i, committed=True)
        for i in sorted(early_records)
    ]


def link_bytes(
    spec: ModelSpec, config: TrainConfig, visits: Sequence[Visit], tiers: Sequence[Tier]
) -> dict[str, int]:
    """Payload bytes of records over each link for these visits (kept gradients not counted)."""
    totals = dict.fromkeys(LINKS, 0)
    for visit in visits:
        for link, moved in visit_bytes(spec, config, visit, tiers[visit.record]).items():
            totals[link] += moved
    return totals


def visit_bytes(spec: ModelSpec, config: TrainConfig, visit: Visit, tier: Tier) -> dict[str, int]:
    """Payload bytes of the visited record over each link; `tier` is its home."""
    if tier == "device":
        return {}
    layout = spec.records[visit.record]
    read = read_bytes(config, layout, visit.reads)
    written = state_payload_bytes(layout, config.state_format) if visit.writes else 0
    moved = {"h2d": read, "d2h": written}
    if tier == "nvme":
        moved |= {"nvme_read": read, "nvme_write": written}
    return moved


def read_bytes(config: TrainConfig, layout: RecordLayout, reads: Reads) -> int:
    """Payload bytes of a record that a visit reads."""
    record = state_record(layout, config.state_format)
    return sum(record.tensor(name).payload_bytes for name in read_names(config, record, reads))


def read_names(config: TrainConfig, record: RecordSpec, reads: Reads) -> tuple[str, ...]:
    """The components that a visit reads."""
    weights = weight_names(record, config.compute_dtype)
    names = [tensor.name for tensor in record.tensors]
    rest = tuple(name for name in names if name not in weights)
    return {"nothing": (), "weights": weights, "state": tuple(names), "rest": rest}[reads]
