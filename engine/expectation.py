"""What each step should have taken, beside what it did, and where the two part. Pure, no torch."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from .cost import StepCost, link_seconds, planned_visits, play_visits
from .homes import Way
from .model import ModelSpec
from .plan import Plan
from .rates import Rates
from .report import LINKS, LinkReport, StepReport
from .step_cost import StepModel
from .step_load import StepLoad
from .visits import redo_visits

DRIFT = 0.2  # of the planned time: from here on it is told
_WINDOW = 5  # steps, of which the middle one counts
_WARM_UP = 1  # steps that compile, fill caches and touch memory for the first time


class Expectation:
    """Predicts the steps of a run as they come: by their tokens, their way, and what followed."""

    def __init__(self, spec: ModelSpec, plan: Plan) -> None:
        self._spec = spec
        self._plan = plan
        self._known: dict[object, StepCost] = {}

    def step(
        self, load: StepLoad, way: Way, *, pending: bool, redone: bool, committed: bool
    ) -> StepCost:
        """A step of that load. `pending`: it makes the update that the step before left to it;
        `redone`: a bet on no clipping was lost; `committed`: a commit came after it.

        Seconds are those of the step without its commit; bytes and seconds of links are with it.
        """
        key = (load, way, pending, redone, committed)
        if key not in self._known:
            found = self._predict(
                load, way, pending=pending, redone=redone, straight_on=not committed
            )
            self._known[key] = self._with_commit(found) if committed else found
        return self._known[key]

    def _predict(
        self, load: StepLoad, way: Way, *, pending: bool, redone: bool, straight_on: bool
    ) -> StepCost:
        basis = self._plan.basis
        model = StepModel(basis.sizes, basis.rates, load)
        placement, drives = basis.placement, basis.drives
        visits = planned_visits(model, placement, way, pending=pending)
        if redone:
            visits = [*visits, *redo_visits(placement.early("speculative"), placement.on_host)]
            straight_on = False  # what was read ahead is dropped
        costs = model.visits(placement, visits)
        return play_visits(model, placement, visits, costs, drives, straight_on=straight_on)

    def _with_commit(self, step: StepCost) -> StepCost:
        basis, moved = self._plan.basis, self._plan.forecast.commit.link_bytes
        seconds = link_seconds(moved, basis.drives, basis.rates)
        return replace(
            step,
            link_bytes={link: step.link_bytes[link] + moved.get(link, 0) for link in LINKS},
            link_seconds={link: step.link_seconds[link] + seconds[link] for link in LINKS},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A run that takes longer or shorter than planned: `share` 0.35 for 35 % longer.

    `resource` is what differs most from the plan: a link by its name, "compute" or "overlap".
    """

    share: float
    measured_seconds: float
    planned_seconds: float
    resource: str
    reason: str

    def __str__(self) -> str:
        return (
            f"a step takes {self.measured_seconds:.3g} s, {self.planned_seconds:.3g} s planned "
            f"({100 * self.share:+.0f} %): {self.reason}"
        )


class DriftWatch:
    """Looks at every step's report; tells once when the run has left its plan, and why."""

    def __init__(self, rates: Rates) -> None:
        """Plans that went by the rates of a usual box promise nothing to drift from."""
        self._promised = rates.origin == "measured"
        self._seen: deque[StepReport] = deque(maxlen=_WINDOW)
        self._skip = _WARM_UP
        self._told: str | None = None

    def look(self, report: StepReport) -> Drift | None:
        """The drift, when it is new: it began, or its reason became another one."""
        if not self._promised:
            return None
        if self._skip:
            self._skip -= 1
            return None
        self._seen.append(report)
        if len(self._seen) < _WINDOW:
            return None
        middle = sorted(self._seen, key=_share)[len(self._seen) // 2]
        share = _share(middle)
        if abs(share) <= DRIFT:
            self._told = None
            return None
        resource, reason = self._reason(slower=share > 0)
        if resource == self._told:
            return None
        self._told = resource
        return Drift(
            share=share,
            measured_seconds=middle.step_seconds - middle.commit_seconds,
            planned_seconds=middle.planned_seconds,
            resource=resource,
            reason=reason,
        )

    def _reason(self, *, slower: bool) -> tuple[str, str]:
        """The resource whose busy time differs most from the plan in the drift's direction."""
        links = [self._link_gap(link) for link in LINKS]
        planned = median(one.planned_compute_seconds for one in self._seen)
        measured = median(one.compute_seconds for one in self._seen)
        gaps = [
            (
                "compute",
                measured - planned,
                f"compute took {measured:.3g} s, {planned:.3g} planned",
            ),
            *(gap for gap in links if gap is not None),
        ]
        name, gap, text = max(gaps, key=lambda one: one[1] if slower else -one[1])
        if (gap > 0) != slower or abs(gap) < DRIFT / 4 * self._seen[-1].planned_seconds:
            return "overlap", "no link and no compute differs so much; their overlap does"
        return name, text

    def _link_gap(self, link: str) -> tuple[str, float, str] | None:
        moved: list[LinkReport] = [one.links[link] for one in self._seen if link in one.links]
        moved = [one for one in moved if one.payload_bytes and one.planned_seconds]
        if not moved:
            return None
        gap = median(one.busy_seconds - one.planned_seconds for one in moved)
        rate = median(one.payload_bytes / max(one.busy_seconds, 1e-9) for one in moved)
        planned = median(one.planned_bytes / one.planned_seconds for one in moved)
        text = f"{link} carried {rate / 1e9:.3g} GB/s, {planned / 1e9:.3g} planned"
        return link, gap, text


def _share(step: StepReport) -> float:
    """How much longer a step took than planned, its commit aside."""
    return (step.step_seconds - step.commit_seconds) / step.planned_seconds - 1


def with_plan(links: Mapping[str, LinkReport], expected: StepCost) -> dict[str, LinkReport]:
    """Each link's report with the planned bytes and seconds beside the measured ones."""

    return {
        name: replace(
            measured,
            planned_bytes=expected.link_bytes.get(name, 0),
            planned_seconds=expected.link_seconds.get(name, 0.0),
        )
        for name, measured in links.items()
    }
