"""Which placements are best: by the formula for all of them, played through for the best. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from .cost import step_seconds
from .formula import StepFormula
from .home_choices import DEFAULT_SLOTS, FEW_RECORDS
from .homes import Placement
from .moves import settled
from .rates import VolumeRates
from .rearrange import rearranged
from .step_cost import StepModel
from .ways import planned_way

_NUM_PLAYED = 6  # placements that the formula finds best are played through, and of so many homes
_NUM_HOMES, _NUM_OF_HOME = 16, 2  # so many of each
_NUM_REARRANGED, _MOST_REARRANGED = 120, 5  # records, of all placements together; and placements
_NUM_SETTLED = 8  # of them, the best, where there are few records; else one
_AWAY_GAIN = 0.02  # state leaves the device for a step that is so much shorter
_BET_GAIN = 0.03  # a lost bet costs more: one that clips in seven steps loses what this gains
_STEADY_GAIN = 0.02  # a drive's pace varies: fewer slots than usual only for so much shorter a step
_EQUAL = 2e-9  # seconds: steps that differ by less are taken to be as long


class Weighed:
    """Seconds of placements of one run on one box, each asked once however often it is weighed."""

    def __init__(self, model: StepModel, drives: VolumeRates) -> None:
        self._model, self._drives = model, drives
        self._step_formula = StepFormula(model, drives)
        self._formula_seconds: dict[Placement, float] = {}
        self._played_seconds: dict[Placement, float] = {}
        self._given_up: dict[Placement, float] = {}  # the limits that these were more than

    def best(self, placements: Sequence[Placement]) -> list[Placement]:
        """The placements that the formula finds best, and those of the best homes: variants of one
        home that the formula takes for too short shall not be all that is played."""
        ranked = sorted(placements, key=self.by_formula)
        by_home: dict[object, list[Placement]] = {}
        for one in ranked:
            home = one.tiers, one.grad_tier, one.activation_tiers, one.host_versions, one.cached
            if home in by_home or len(by_home) < _NUM_HOMES:
                by_home.setdefault(home, []).append(one)
        of_homes = [one for same in by_home.values() for one in same[:_NUM_OF_HOME]]
        return [
            *ranked[:_NUM_PLAYED],
            *(one for one in of_homes if one not in ranked[:_NUM_PLAYED]),
        ]

    def fastest(
        self, placements: Sequence[Placement], device_limit: int, host_limit: int
    ) -> tuple[float, Placement]:
        """Seconds and placement of the shortest step, the best homes rearranged (rearrange.py), and
        of those the best moved record by record (moves.py): fewer of a model of many records, of
        which each is little of the whole and whose step takes longer to play. One with all
        state on the device is taken where others are hardly shorter, since it needs no link, and
        then one that bets on no step being clipped only where others are longer. What streams from
        a drive has the usual number of slots unless fewer make the step much shorter."""
        groups = [[one for one in placements if one.host_versions == count] for count in (1, 2)]
        limits = {"device_limit": device_limit, "host_limit": host_limit}
        found = [one for group in groups for one in self._refined(group, limits)]
        shortest = min(found, key=_rank)
        at_home = [one for one in found if set(one[1].tiers) == {"device"}]
        certain = [one for one in found if one[1].host_versions == 1]
        for preferred, gain in ((at_home, _AWAY_GAIN), (certain, _BET_GAIN)):
            nearly = [one for one in preferred if one[0] <= shortest[0] * (1 + gain)]
            if nearly:
                return self._steadier(min(nearly, key=_rank), device_limit, host_limit)
        return self._steadier(shortest, device_limit, host_limit)

    def _steadier(
        self, one: tuple[float, Placement], device_limit: int, host_limit: int
    ) -> tuple[float, Placement]:
        """The same through the usual number of slots, where a drive is in it and these fit.

        The steps that are played have a drive of one pace. A real one has not, and two slots, one
        read into while the other is written, make each wait for the slower of the two.
        """
        sizes, (seconds, placement) = self._model.sizes, one
        few = placement.num_slots < DEFAULT_SLOTS and sizes.config.num_slots is None
        if not few or "nvme" not in placement.tiers:
            return one
        usual = replace(placement, num_slots=DEFAULT_SLOTS)
        if sizes.device(usual) > device_limit or sizes.host(usual) > host_limit:
            return one
        longer = self.played(usual)
        return (longer, usual) if longer <= seconds * (1 + _STEADY_GAIN) else one

    def _refined(
        self, placements: Sequence[Placement], limits: Mapping[str, int]
    ) -> list[tuple[float, Placement]]:
        """The best of them rearranged and settled: as many as are worth it."""
        sizes = self._model.sizes
        versions = {one.host_versions for one in placements}

        def seconds(one: Placement, limit: float) -> float:
            """Inf for one of another kind: a bet, or none."""
            return self.played(one, limit) if one.host_versions in versions else inf

        most = max(1, min(_MOST_REARRANGED, _NUM_REARRANGED // len(sizes.spec.records)))
        found = [
            rearranged(sizes, one, **limits, about=self.by_formula, seconds=seconds)
            for one in self._fastest_homes(self.best(placements), most)
        ]
        settling = _NUM_SETTLED if len(sizes.spec.records) <= FEW_RECORDS else 1
        return found + [
            settled(sizes, one, **limits, about=self.by_formula, seconds=seconds)
            for one in sorted(found, key=_rank)[:settling]
        ]

    def _fastest_homes(self, placements: Sequence[Placement], most: int) -> list[Placement]:
        """The fastest placement of each of so many homes of state that are the fastest."""
        times: list[tuple[float, Placement]] = []
        least: dict[object, float] = {}
        limit = inf
        for one in placements:
            seconds = self.played(one, limit)
            times.append((seconds, one))
            least[one.tiers] = min(seconds, least.get(one.tiers, inf))
            if len(least) >= most:
                limit = sorted(least.values())[most - 1] + _EQUAL
        homes: dict[object, Placement] = {}
        for _, one in sorted(times, key=_rank):
            homes.setdefault(one.tiers, one)
        return list(homes.values())[:most]

    def by_formula(self, placement: Placement) -> float:
        """Seconds of the step by the formula."""
        seconds = self._formula_seconds.get(placement)
        if seconds is None:
            way = planned_way(self._model.config, placement)
            seconds = self._step_formula.seconds(placement, way)
            self._formula_seconds[placement] = seconds
        return seconds

    def played(self, placement: Placement, limit: float = inf) -> float:
        """The step played through; inf where that is sure to be more than `limit`."""
        known = self._played_seconds.get(placement)
        if known is not None and (known < inf or limit <= self._given_up[placement]):
            return known
        way = planned_way(self._model.config, placement)
        seconds = step_seconds(self._model, placement, way, self._drives, limit=limit)
        self._played_seconds[placement] = seconds
        self._given_up[placement] = limit
        return seconds


def _rank(one: tuple[float, Placement]) -> tuple[float, int]:
    """Between equals the usual number of slots comes first."""
    return round(one[0], 9), abs(one[1].num_slots - DEFAULT_SLOTS)
