"""Seconds of a step: each phase's links side by side, and the step played through. Pure, no torch.

The formula, per phase: the largest of compute, drive (reads and writes share it), copies up and
copies down; and the first record's way in and the last one's way out, which nothing hides. It
ranks placements. What a plan promises is the same costs played through the ring (`timeline.py`).
What the processor updates in host memory goes on beside all this, until forward wants it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .config import TrainConfig
from .homes import Placement, Way
from .orders import ordered_visits
from .rates import Rates, VolumeRates
from .report import LINKS
from .step_cost import Costs, StepModel, VisitCost
from .step_ring import play_step
from .visits import Phase, Visit

Resource = str  # "compute", "drive", "h2d", "d2h" or "host"
RESOURCES: tuple[Resource, ...] = ("compute", "drive", "h2d", "d2h", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCost:
    """One phase of a step: how long it takes, and how long each resource is busy in it."""

    phase: Phase
    seconds: float
    busy_seconds: dict[Resource, float]

    @property
    def bottleneck(self) -> Resource:
        """The resource that is busy longest."""
        return max(self.busy_seconds, key=lambda name: self.busy_seconds[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """A step as predicted: `link_bytes` and `link_seconds` by report.LINKS, payload alone."""

    seconds: float
    phases: tuple[PhaseCost, ...]
    link_bytes: dict[str, int]
    link_seconds: dict[str, float]

    def busy_seconds(self) -> dict[Resource, float]:
        """How long each resource is busy in the whole step."""
        return {name: sum(phase.busy_seconds[name] for phase in self.phases) for name in RESOURCES}


def formula_seconds(model: StepModel, placement: Placement, way: Way, drives: VolumeRates) -> float:
    """The step by the formula alone: quick, and the same order of placements as playing it."""
    visits = planned_visits(model, placement, way)
    costs = model.visits(placement, visits)
    phases = _busy_by_phase(costs, drives, model.rates)
    if reads_ahead(model, placement, way):
        forward, backward = _read_ahead_seconds(model, placement, phases)
        spans: dict[Phase, float] = {"forward": forward, "backward": backward}
        return forward + backward + host_wait(visits, costs, spans, straight_on=True)
    ends = _stage_seconds(costs[0].costs, drives, model.rates)
    ends += _stage_seconds(costs[-1].costs, drives, model.rates)
    spans = {phase: max(busy.values()) for phase, busy in phases.items()}
    wait = host_wait(visits, costs, spans, straight_on=goes_straight_on(model.config))
    return sum(spans.values()) + sum(ends) + wait


def host_wait(
    visits: Sequence[Visit],
    costs: Sequence[VisitCost],
    spans: Mapping[Phase, float],
    *,
    straight_on: bool,
) -> float:
    """Seconds that the processor's updates hold a step up.

    They are made one after the other: those of the backward phase as their gradients come, the
    others from its end on. Backward, and then the next step's forward, are taken to come to them at
    an even pace; where a commit comes first, it waits for all. `spans` are the phases' seconds.
    """
    order = [visit.record for visit in visits if visit.phase == "forward"]
    late = spans.get("optimizer", 0.0)
    backward = [i for i, visit in enumerate(visits) if visit.phase == "backward"]
    wait, finished = 0.0, -spans["backward"] if backward else 0.0  # from backward's end on
    for i, (visit, cost) in enumerate(zip(visits, costs, strict=True)):
        if visit.on_host:
            ahead = len(backward) - backward.index(i) if visit.phase == "backward" else 0
            comes = -spans["backward"] * ahead / len(backward) if ahead else 0.0
            finished = max(finished, comes) + cost.host_seconds
            pace = order.index(visit.record) / len(order) if straight_on else 0.0
            wait = max(wait, finished - late - pace * spans["forward"])
    return wait


def planned_visits(
    model: StepModel, placement: Placement, way: Way, *, pending: bool | None = None
) -> list[Visit]:
    """The visits of a step; of one in the middle of a run where `pending` is not given."""
    return ordered_visits(
        model.spec,
        placement,
        way,
        pending=way == "deferred" if pending is None else pending,
        microbatches=model.load.microbatches,
    )


def goes_straight_on(config: TrainConfig) -> bool:
    """Whether most steps are followed by the next at once, with no commit in between."""
    return config.commit_every_steps > 1


def reads_ahead(model: StepModel, placement: Placement, way: Way) -> bool:
    """Whether a step's first records come up while the one before is in its backward pass."""
    beside = way == "deferred" or (way == "speculative" and "nvme" not in placement.tiers)
    return beside and model.config.device == "cuda" and goes_straight_on(model.config)


def _read_ahead_seconds(
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


def step_cost(model: StepModel, placement: Placement, way: Way, drives: VolumeRates) -> StepCost:
    """A step in the middle of a run, played through the placement's ring."""
    visits = planned_visits(model, placement, way)
    costs = model.visits(placement, visits)
    straight_on = goes_straight_on(model.config)
    return play_visits(model, placement, visits, costs, drives, straight_on=straight_on)


def play_visits(
    model: StepModel,
    placement: Placement,
    visits: Sequence[Visit],
    costs: Sequence[VisitCost],
    drives: VolumeRates,
    *,
    straight_on: bool = False,
) -> StepCost:
    """Cost and time of these visits through a ring of the placement's slots.

    `straight_on`: they are those of a step that follows one like it at once and is followed by
    another. What its first records need has been read ahead, and it reads the next one's.
    """
    ends, end = play_step(model, placement, visits, costs, drives, straight_on=straight_on)
    spans: dict[Phase, float] = {}
    before = 0.0
    for cost, computed in zip(costs, ends, strict=True):
        spans[cost.phase] = spans.get(cost.phase, 0.0) + computed - before
        before = computed
    spans[costs[-1].phase] += end - before  # what is still on its way out
    busy = _busy_by_phase(costs, drives, model.rates)
    wait = _add_host(visits, costs, spans, busy, straight_on=straight_on)
    phases = tuple(
        PhaseCost(phase=phase, seconds=seconds, busy_seconds=busy[phase])
        for phase, seconds in spans.items()
    )
    moved = {link: sum(cost.bytes[i] for cost in costs) for i, link in enumerate(LINKS)}
    return StepCost(
        seconds=end + wait,
        phases=phases,
        link_bytes=moved,
        link_seconds=link_seconds(moved, drives, model.rates),
    )


def _add_host(
    visits: Sequence[Visit],
    costs: Sequence[VisitCost],
    spans: dict[Phase, float],
    busy: Mapping[Phase, dict[Resource, float]],
    *,
    straight_on: bool,
) -> float:
    """Add the processor's updates to the phases beside which they are made; seconds waited."""
    early = sum(cost.host_seconds for cost in costs if cost.phase == "backward")
    total = sum(cost.host_seconds for cost in costs)
    if not total:
        return 0.0
    wait = host_wait(visits, costs, spans, straight_on=straight_on)
    last: Phase = "optimizer" if "optimizer" in spans else "backward"
    spans[last] += wait
    busy["backward"]["host"] = min(early, spans["backward"])
    left = total - busy["backward"]["host"]
    if last == "optimizer":
        busy[last]["host"] = min(left, spans[last])
        left -= busy[last]["host"]
    busy["forward"]["host"] = left
    return wait


def link_seconds(moved: Mapping[str, int], drives: VolumeRates, rates: Rates) -> dict[str, float]:
    """Seconds of each link for these bytes, alone on it; a link that is not named moves none."""
    speeds = (drives.read, drives.write, rates.h2d, rates.d2h)
    return {link: moved.get(link, 0) / speed for link, speed in zip(LINKS, speeds, strict=True)}


def _busy_by_phase(
    costs: Sequence[VisitCost], drives: VolumeRates, rates: Rates
) -> dict[Phase, dict[Resource, float]]:
    sums: dict[Phase, list[float]] = {}
    for cost in costs:
        total = sums.setdefault(cost.phase, [0.0] * 5)
        for stage, amount in enumerate(cost.costs):
            total[stage] += amount
    return {phase: _busy(total, drives, rates) for phase, total in sums.items()}


def _busy(total: Sequence[float], drives: VolumeRates, rates: Rates) -> dict[Resource, float]:
    read, up, compute, down, written = total
    both = bool(up and down)
    up_rate, down_rate = rates.link(busy=both)
    return {
        "compute": compute,
        "drive": drives.seconds(read, written),
        "h2d": up / up_rate,
        "d2h": down / down_rate,
        "host": 0.0,
    }


def _stage_seconds(costs: Costs, drives: VolumeRates, rates: Rates) -> list[float]:
    """Seconds of each link stage of one visit alone, compute left out."""
    read, up, _, down, written = costs
    return [read / drives.read, up / rates.h2d, down / rates.d2h, written / drives.write]
