"""Seconds of a step by the formula alone, to rank thousands of placements by. Pure, no torch.

Per phase: the largest of compute, drive (reads and writes share it), copies up and copies down; and
the first record's way in and the last one's way out, which nothing hides. What the processor
updates goes on beside all this, until forward wants it.

Records that are alike and are treated alike take the same in a step. What one of them takes is
summed once, from its visits; a placement is then a count of each kind.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from .cost import Resource, busy_seconds, goes_straight_on, planned_visits, updates_wait
from .homes import Placement, Tier, Way
from .orders import last_record
from .rates import VolumeRates
from .step_cost import Costs, StepModel, VisitCost
from .timeline import STAGES
from .visits import SLOTS_TO_HOLD_ONE, Phase

_PHASES: tuple[Phase, ...] = get_args(Phase)
_Key = tuple[int, Tier, bool, Tier | None, bool, bool]


@dataclass(frozen=True, slots=True)
class _Part:
    """What one record takes in a step: sums by phase and stage, one after the other; its first and
    its last visit; how many visits in forward and backward; seconds of the processor."""

    sums: tuple[float, ...]
    first: Costs
    last: Costs
    num_forward: int = 0
    num_backward: int = 0
    host_seconds: float = 0.0


_NONE: Costs = (0.0, 0.0, 0.0, 0.0, 0.0)
_NO_PART = _Part(sums=(), first=_NONE, last=_NONE)  # of a record that a step does not visit


class StepFormula:
    """The formula for placements of one run on one box."""

    def __init__(self, model: StepModel, drives: VolumeRates) -> None:
        self._model, self._drives = model, drives
        spec = model.spec
        self._spec = spec
        self._count = len(spec.records)
        self._layers = spec.indices["layer"]
        self._forward = [*spec.indices["embedding"], *self._layers, *spec.indices["head"]]
        self._kinds = self._number_kinds()
        self._nothing = (False,) * self._count
        self._parts: dict[object, dict[_Key, _Part]] = {}

    def _number_kinds(self) -> list[int]:
        """A number for each record: layers at either end, and those that backward does not come
        to, are treated in a way of their own."""
        numbers: dict[object, int] = {}
        below = self._layers[: self._spec.first_backward_layer]
        found = []
        for i, alike in enumerate(self._model.alike):
            kind = alike, i in self._layers[:1], i in self._layers[-1:], i in below
            found.append(numbers.setdefault(kind, len(numbers)))
        return found

    def seconds(self, placement: Placement, way: Way) -> float:
        """The step in that way."""
        model, drives = self._model, self._drives
        keys = self._keys(placement)
        parts = self._parts_of(placement, way, keys)
        totals = [0.0] * (len(STAGES) * len(_PHASES))
        for key, count in Counter(keys).items():
            for i, amount in enumerate(parts[key].sums):
                if amount:
                    totals[i] += count * amount
        phases = {
            phase: busy_seconds(totals[start : start + len(STAGES)], drives, model.rates)
            for start, phase in zip(range(0, len(totals), len(STAGES)), _PHASES, strict=True)
        }
        early, spans, ends = placement.early(way), [0.0, 0.0, 0.0], 0.0
        straight_on = goes_straight_on(model.config)
        if ahead := reads_ahead(model, placement, way):
            spans[:2] = read_ahead_seconds(model, placement, phases)
        else:
            last = last_record(self._spec, placement, way, early)
            ends = self._way_through(parts[keys[self._forward[0]]].first)
            ends += self._way_through(parts[keys[last]].last)
            spans = [max(phases[phase].values()) for phase in _PHASES]
        seconds = sum(spans) + ends
        if placement.on_host:
            of_each = [parts[key] for key in keys]
            seconds += self._host_wait(
                placement, of_each, early, spans, straight_on=straight_on or ahead
            )
        return seconds

    def _way_through(self, costs: Costs) -> float:
        """Seconds of the link stages of one visit alone, compute left out."""
        read, up, _, down, written = costs
        drives, rates = self._drives, self._model.rates
        return read / drives.read + up / rates.h2d + down / rates.d2h + written / drives.write

    def _keys(self, placement: Placement) -> list[_Key]:
        """What each record's part of a step depends on, but for what is one for all records."""
        kept = on_host = cached = self._nothing
        waits: Sequence[Tier | None] = (None,) * self._count
        if placement.keep_layers:
            kept = self._marked([self._layers[i] for i in placement.keep_layers])
        if placement.on_host:
            on_host = self._marked(placement.on_host)
        if placement.cached:
            cached = self._marked(placement.cached)
        inputs = placement.waits
        if inputs.count("device") < len(inputs):
            found: list[Tier | None] = [None] * self._count
            for i, tier in zip(self._layers, inputs, strict=True):
                found[i] = tier
            waits = found
        rows = zip(self._kinds, placement.tiers, kept, waits, on_host, cached, strict=True)
        return list(rows)

    def _marked(self, records: Sequence[int]) -> tuple[bool, ...]:
        marked = [False] * self._count
        for i in records:
            marked[i] = True
        return tuple(marked)

    def _parts_of(
        self, placement: Placement, way: Way, keys: Sequence[_Key]
    ) -> Mapping[_Key, _Part]:
        """The part of each key; of one that has not been met, from the visits of this placement."""
        alike = (
            way, placement.host_versions, placement.keep_grads, placement.grad_tier,
            placement.num_slots >= SLOTS_TO_HOLD_ONE,
        )  # fmt: skip
        parts = self._parts.setdefault(alike, {})
        new = {key: i for i, key in enumerate(keys) if key not in parts}
        if new:
            visits = planned_visits(self._model, placement, way)
            costs = self._model.visits(placement, visits)
            of: dict[int, list[tuple[Phase, VisitCost]]] = {i: [] for i in new.values()}
            for visit, cost in zip(visits, costs, strict=True):
                if visit.record in of:
                    of[visit.record].append((visit.phase, cost))
            for key, i in new.items():
                parts[key] = _sum_of(of[i]) if of[i] else _NO_PART  # frozen, and below the trained
        return parts

    def _host_wait(
        self,
        placement: Placement,
        parts: Sequence[_Part],
        early: Collection[int],
        spans: Sequence[float],
        *,
        straight_on: bool,
    ) -> float:
        """Seconds that the processor's updates hold the step up (`cost.updates_wait`); `parts` are
        those of each record."""
        updates: list[tuple[float, float, float]] = []
        of = self._spec.indices
        there = set(placement.on_host)
        forward = len(self._forward) + (parts[of["norm"][0]].num_forward)
        if there & set(early):
            num = sum(part.num_backward for part in parts)
            at = sum(parts[i].num_backward for i in (*of["norm"], *of["head"]))
            for i in reversed(self._layers):
                at += parts[i].num_backward
                if i in there and i in early:
                    pace = self._forward.index(i) / forward
                    updates.append(((num - at + 1) / num, pace, parts[i].host_seconds))
        for i in sorted(there.difference(early)):
            updates.append((0.0, self._forward.index(i) / forward, parts[i].host_seconds))
        return updates_wait(updates, spans, straight_on=straight_on)


def _sum_of(visits: Sequence[tuple[Phase, VisitCost]]) -> _Part:
    """The part of a record with these visits, in order."""
    sums = [0.0] * (len(STAGES) * len(_PHASES))
    for phase, cost in visits:
        start = len(STAGES) * _PHASES.index(phase)
        for stage, amount in enumerate(cost.costs):
            sums[start + stage] += amount
    phases = [phase for phase, _ in visits]
    return _Part(
        sums=tuple(sums),
        first=visits[0][1].costs,
        last=visits[-1][1].costs,
        num_forward=phases.count("forward"),
        num_backward=phases.count("backward"),
        host_seconds=sum(cost.host_seconds for _, cost in visits),
    )


def reads_ahead(model: StepModel, placement: Placement, way: Way) -> bool:
    """Whether a step's first records come up while the one before is in its backward pass."""
    beside = way == "deferred" or (way == "speculative" and "nvme" not in placement.tiers)
    return beside and model.config.device == "cuda" and goes_straight_on(model.config)


def read_ahead_seconds(
    model: StepModel, placement: Placement, phases: Mapping[Phase, Mapping[Resource, float]]
) -> tuple[float, float]:
    """Forward and backward where the ring carries state over from one step to the next.

    What fits the slots comes up and goes down in whichever pass has time for it. A slot is read
    into, computed on and written in turn: few slots leave a stage idle.
    """
    forward, backward = dict(phases["forward"]), dict(phases["backward"])
    ring_seconds = placement.num_slots * model.slot_bytes / model.rates.link(busy=True)[0]
    for direction in ("h2d", "d2h"):
        for full, other in ((forward, backward), (backward, forward)):
            spare = max(0.0, other["compute"] - other[direction])
            excess = max(0.0, full[direction] - full["compute"])
            carried = min(ring_seconds, spare, excess)
            full[direction] -= carried
            other[direction] += carried

    def seconds(busy: Mapping[Resource, float]) -> float:
        in_turn = (busy["h2d"] + busy["compute"] + busy["d2h"]) / placement.num_slots
        return max(in_turn, *busy.values())

    late = phases.get("optimizer", {}).get("compute", 0.0)
    return seconds(forward), seconds(backward) + late
