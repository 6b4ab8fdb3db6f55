"""Plan and measurement side by side: what each step should have taken, and when it does not."""

from collections.abc import Sequence
from dataclasses import asdict

from headrace.storage import VolumeConfig

from .calibration import device_name
from .cost import StepCost
from .data import Microbatch
from .expectation import DriftWatch, Expectation
from .homes import Way
from .rate_file import mark_drift
from .rates import shape_key
from .report import DRIVE_LINKS, Emit, Level, RunEvent, StepReport
from .step import StepOutcome
from .step_load import StepLoad
from .step_report import Links, StepClock
from .workspace import Workspace


class StepTruth:
    """Holds the steps of a run against its plan."""

    def __init__(self, work: Workspace, emit: Emit) -> None:
        self._work = work
        self._config = work.config
        self._links: Links | None = None
        self._expectation = Expectation(work.spec, work.plan)
        self._watch = DriftWatch(work.plan.basis.rates)
        self._emit = emit

    def start(self) -> StepClock:
        """The clock of a step that begins now."""
        return StepClock(self._work, self._links)

    def expected(
        self,
        batches: Sequence[Microbatch],
        way: Way,
        outcome: StepOutcome,
        *,
        owed: bool,
        committed: bool,
    ) -> StepCost:
        """What the plan has for this step. `owed`: it made the update of the step before."""
        load = StepLoad(
            tokens=sum(batch.ids.numel() for batch in batches),
            microbatches=len(batches),
            row_tokens=_row_tokens(batches),
            trained_tokens=outcome.totals.num_trained,
        )
        lost = way == "speculative" and self._config.clip_mode == "exact" and outcome.clipped
        return self._expectation.step(load, way, pending=owed, redone=lost, committed=committed)

    def tell(self, report: StepReport, clock: StepClock, *, straight_on: bool) -> None:
        """Say when steps take longer or shorter than was planned by measured rates, and why; the
        rates are in doubt then, and the next job measures them again.

        `straight_on`: the next step follows at once, with what was read ahead for it.
        """
        self._links = clock.links if straight_on else None
        drift = self._watch.look(report)
        if drift is None:
            return
        level: Level = "warn" if drift.share > 0 else "info"
        data = {"drift": asdict(drift)}
        self._emit(
            RunEvent(type="message", level=level, message=str(drift), step=report.step, data=data)
        )
        mark_drift(
            [VolumeConfig.parse(text) for text in self._config.volumes],
            shape_key(self._work.spec, self._config),
            f"in a run since, {drift}",
            device_name=device_name(self._config.device),
            drives=drift.resource in DRIVE_LINKS,
        )


def _row_tokens(batches: Sequence[Microbatch]) -> int:
    """Tokens of the row that a token is in, on average: attention works in proportion to it."""
    lengths: list[int] = []
    for batch in batches:
        rows, width = batch.ids.shape
        lengths += batch.lengths.tolist() if batch.packed else [width] * rows
    return round(sum(n * n for n in lengths) / sum(lengths))
