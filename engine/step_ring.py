"""A step's visits through the ring of a placement: what takes a slot, what is read ahead. Pure."""

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from typing import Any

from .homes import Placement
from .rates import VolumeRates
from .step_cost import StepModel, VisitCost
from .timeline import Ring, Turn, play
from .visits import Visit, num_ahead, write_order


def play_step(
    model: StepModel,
    placement: Placement,
    visits: Sequence[Visit],
    costs: Sequence[VisitCost],
    drives: VolumeRates,
    *,
    straight_on: bool,
    limit: float = inf,
) -> tuple[list[float], float]:
    """When each visit's compute ends and when the step does, seconds from its beginning; inf of a
    step that is given up because it is sure to take more than `limit` seconds."""
    on_cpu = model.config.device == "cpu"
    ring = Ring(
        num_slots=placement.num_slots, reader_copies=on_cpu, num_staging=placement.num_staging
    )
    if not straight_on:
        turns = [Turn(**given) for given in _ways_round(placement, visits, costs)]
        played = play(turns, ring, drives=drives, rates=model.rates, limit=limit)
        return played.compute_ends, played.end
    count = len(visits)
    # A step ends when all is computed and what the drive is given is written; on a GPU copies
    # down to host memory go on beside the next one.
    lasting = [i for i, cost in enumerate(costs) if cost.costs[4] or (on_cpu and cost.costs[3])]
    written = lasting[-1] + 1 if lasting else 0
    ahead = num_ahead(visits, placement.num_slots, partial(takes_slot, placement))
    turns = [
        Turn(
            **given,
            after=(0, 0) if i < count else (count, written),
            ahead=i >= 2 * count or count <= i < count + ahead,
        )
        for i, given in enumerate(
            _ways_round(
                placement, [*visits, *visits, *visits[:ahead]], [*costs, *costs, *costs[:ahead]]
            )
        )
    ]
    until = 2 * count, count + written if written else 0
    played = play(turns, ring, drives=drives, rates=model.rates, until=until, limit=limit)

    def end(first: int) -> float:
        last_write = played.write_ends[first + written - 1] if written else 0.0
        return max(played.compute_ends[first + count - 1], last_write)

    if end(count) == inf:
        return [inf] * count, inf
    begun = end(0)
    ends = [computed - begun for computed in played.compute_ends[count : 2 * count]]
    return ends, end(count) - begun


def _ways_round(
    placement: Placement, visits: Sequence[Visit], costs: Sequence[VisitCost]
) -> Iterator[dict[str, Any]]:
    """Of each visit what Turn says of it, but for what it waits for."""
    follows = write_order(visits)
    for visit, cost, earlier in zip(visits, costs, follows, strict=True):
        in_slot, on_drive = takes_slot(placement, visit), placement.tiers[visit.record] == "nvme"
        yield {
            "work": cost.costs,
            "follows": earlier,
            "takes_slot": in_slot and not visit.held,
            "frees_slot": in_slot and not visit.holds,
            "stages_in": on_drive and visit.reads != "nothing",
            "stages_out": on_drive and visit.writes,
        }


def takes_slot(placement: Placement, visit: Visit) -> bool:
    """Whether the visit's record passes through a slot (Mover.needs_slot)."""
    if placement.tiers[visit.record] == "device":
        return False
    if visit.record in placement.cached and visit.reads == "weights":
        return False
    return visit.reads != "nothing" or visit.writes or visit.held
