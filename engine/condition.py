"""The feasibility condition: where compute hides transfer, layer by layer and pass by pass. Pure.

A layer's transfer is hidden when computing it takes at least as long as moving it. Compute grows
with the tokens of a step and weights do not, so there is a number of tokens, T*, from which the
condition holds; it depends on neither depth nor width of the model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .cost import planned_visits
from .homes import Placement, Tier, Way
from .rates import Rates, VolumeRates
from .step_cost import Costs, StepModel
from .visits import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Layers of one kind in one pass. Seconds are a layer's; `link` is the slowest to move it.

    `slack_seconds` is compute less transfer: below zero the pass waits for the link.
    `tokens_needed` is T*, tokens of a step; None when no number of tokens is enough.
    """

    phase: Phase
    home: Tier
    recomputed: bool
    num_layers: int
    compute_seconds: float
    transfer_seconds: float
    link: str
    slack_seconds: float
    tokens_needed: int | None

    @property
    def holds(self) -> bool:
        """Whether the transfer is hidden."""
        return self.slack_seconds >= 0


def conditions(
    model: StepModel, placement: Placement, way: Way, drives: VolumeRates
) -> list[Condition]:
    """The condition of every group of layers that are treated alike, in the order of the step."""
    twice = model.with_steps_of(2)
    visits = planned_visits(model, placement, way)
    costs = zip(
        visits, model.visits(placement, visits), twice.visits(placement, visits), strict=True
    )
    groups: dict[tuple[Phase, Tier, bool, Costs], list[Costs]] = {}
    for visit, once, double in costs:
        if visit.on_host or (
            visit.action not in ("forward", "backward") and visit.phase != "optimizer"
        ):
            continue
        record = model.spec.records[visit.record]
        if record.kind != "layer":
            continue
        kept = model.layer_of[visit.record] in placement.keep_layers
        recomputed = visit.action == "backward" and not kept
        key = (visit.phase, placement.tiers[visit.record], recomputed, once.own_costs)
        groups.setdefault(key, []).append(double.own_costs)
    return [_condition(model, key, doubles, drives) for key, doubles in groups.items()]


def step_tokens_needed(
    model: StepModel, placement: Placement, way: Way, drives: VolumeRates
) -> dict[str, int | None]:
    """Tokens of a step from which all of its compute takes longer than each resource is busy."""
    visits = planned_visits(model, placement, way)

    def total(of: StepModel) -> dict[str, float]:
        costs = [cost.costs for cost in of.visits(placement, visits)]
        sums = [sum(column) for column in zip(*costs, strict=True)]
        moved: Costs = (sums[0], sums[1], sums[2], sums[3], sums[4])
        return {"compute": sums[2], **transfer_seconds(moved, drives, model.rates)}

    once, double = total(model), total(model.with_steps_of(2))
    compute = (once.pop("compute"), double["compute"])
    return {
        name: _crossing(model.load.tokens, compute, (seconds, double[name]))
        for name, seconds in once.items()
    }


def _condition(
    model: StepModel,
    key: tuple[Phase, Tier, bool, Costs],
    doubles: Sequence[Costs],
    drives: VolumeRates,
) -> Condition:
    phase, home, recomputed, once = key
    compute = once[2]
    links = transfer_seconds(once, drives, model.rates)
    link = max(links, key=lambda name: links[name])
    needed = [
        _crossing(model.load.tokens, (compute, doubles[0][2]), (links[name], grown))
        for name, grown in transfer_seconds(doubles[0], drives, model.rates).items()
    ]
    return Condition(
        phase=phase,
        home=home,
        recomputed=recomputed,
        num_layers=len(doubles),
        compute_seconds=compute,
        transfer_seconds=links[link],
        link=link,
        slack_seconds=compute - links[link],
        tokens_needed=None if None in needed else max(needed),  # type: ignore[type-var]
    )


def transfer_seconds(costs: Costs, drives: VolumeRates, rates: Rates) -> dict[str, float]:
    """Seconds of each resource that moves bytes: the drive's both directions share its time."""
    read, up, _, down, written = costs
    up_rate, down_rate = rates.link(busy=bool(up and down))
    return {
        "drive": drives.seconds(read, written),
        "h2d": up / up_rate,
        "d2h": down / down_rate,
    }


def _crossing(
    tokens: int, compute: tuple[float, float], transfer: tuple[float, float]
) -> int | None:
    """Tokens at which compute catches up, from both at `tokens` and at twice as many.

    Both are straight lines in tokens. None when the transfer grows as fast.
    """
    slope = (compute[1] - compute[0]) - (transfer[1] - transfer[0])
    behind = (2 * transfer[0] - transfer[1]) - (2 * compute[0] - compute[1])  # at no tokens
    if behind <= 0:
        return 0 if slope >= 0 else None
    return math.ceil(tokens * behind / slope) if slope > 0 else None
