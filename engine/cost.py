"""Seconds of a step, played through, and how long each resource is busy in it. Pure, no torch.

What a plan promises is the costs of a step's visits played through the ring (`timeline.py`); the
formula that ranks placements is in `formula.py`. What the processor updates in host memory goes on
beside all this, until forward wants it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

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


def host_wait(
    visits: Sequence[Visit],
    costs: Sequence[VisitCost],
    spans: Mapping[Phase, float],
    *,
    straight_on: bool,
) -> float:
    """Seconds that the processor's updates hold a step up.

    `spans` are the phases' seconds.
    """
    order = [visit.record for visit in visits if visit.phase == "forward"]
    backward = [i for i, visit in enumerate(visits) if visit.phase == "backward"]
    updates = []
    for i, (visit, cost) in enumerate(zip(visits, costs, strict=True)):
        if visit.on_host:
            ahead = len(backward) - backward.index(i) if visit.phase == "backward" else 0
            share = ahead / len(backward) if ahead else 0.0
            updates.append((share, order.index(visit.record) / len(order), cost.host_seconds))
    each = [spans.get(phase, 0.0) for phase in ("forward", "backward", "optimizer")]
    return updates_wait(updates, each, straight_on=straight_on)


def updates_wait(
    updates: Iterable[tuple[float, float, float]], spans: Sequence[float], *, straight_on: bool
) -> float:
    """Seconds that updates by the processor hold a step up. Of each: the share of backward that is
    still to come when its gradient is there, the share of the next forward that is over when it is
    wanted, and its own seconds. `spans` are those of forward, backward and optimizer.

    They are made one after the other: those of the backward phase as their gradients come, the
    others from its end on. Backward, and then the next step's forward, are taken to come to them at
    an even pace; where a commit comes first, it waits for all.
    """
    forward, backward, late = spans
    wait, finished = 0.0, -backward  # from backward's end on
    for ahead, pace, seconds in updates:
        finished = max(finished, -backward * ahead) + seconds
        wait = max(wait, finished - late - (pace * forward if straight_on else 0.0))
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


def step_cost(model: StepModel, placement: Placement, way: Way, drives: VolumeRates) -> StepCost:
    """A step in the middle of a run, played through the placement's ring."""
    visits = planned_visits(model, placement, way)
    costs = model.visits(placement, visits)
    straight_on = goes_straight_on(model.config)
    return play_visits(model, placement, visits, costs, drives, straight_on=straight_on)


def step_seconds(
    model: StepModel,
    placement: Placement,
    way: Way,
    drives: VolumeRates,
    *,
    limit: float = inf,
) -> float:
    """The seconds of `step_cost`; inf where they are sure to be more than `limit`."""
    visits = planned_visits(model, placement, way)
    costs = model.visits(placement, visits)
    straight_on = goes_straight_on(model.config)
    ends, end = play_step(
        model, placement, visits, costs, drives, straight_on=straight_on, limit=limit
    )
    if end == inf or not any(cost.host_seconds for cost in costs):
        return end
    spans = _phase_spans(costs, ends, end)
    return end + host_wait(visits, costs, spans, straight_on=straight_on)


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
    spans = _phase_spans(costs, ends, end)
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


def _phase_spans(
    costs: Sequence[VisitCost], ends: Sequence[float], end: float
) -> dict[Phase, float]:
    """Seconds of each phase, from when its visits' compute ends and the step does."""
    spans: dict[Phase, float] = {}
    before = 0.0
    for cost, computed in zip(costs, ends, strict=True):
        spans[cost.phase] = spans.get(cost.phase, 0.0) + computed - before
        before = computed
    spans[costs[-1].phase] += end - before  # what is still on its way out
    return spans


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
    of: dict[Phase, list[Costs]] = {}
    for cost in costs:
        of.setdefault(cost.phase, []).append(cost.costs)
    return {
        phase: busy_seconds([sum(column) for column in zip(*each, strict=True)], drives, rates)
        for phase, each in of.items()
    }


def busy_seconds(
    total: Sequence[float], drives: VolumeRates, rates: Rates
) -> dict[Resource, float]:
    """How long each resource is busy with so much in each stage (timeline.STAGES)."""
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
