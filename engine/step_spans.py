"""The newest step as a picture: which part of it ran when, and when each link was busy.

Kept in one small file in the run's folder, written anew at most once a second, for whoever looks.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, get_args

from headrace.storage import LinkStats

from .pipeline import VisitTimes
from .report import StepReport
from .visits import Phase, Visit

FILE_NAME = "timeline.json"
LEAST_SECONDS = 1.0  # between two pictures
MAX_SPANS = 400  # in a lane
PHASES: tuple[Phase, ...] = get_args(Phase)

Piece = tuple[str, float, float]  # what, from, to; seconds from the start of the step


class StepPictures:
    """Writes a run's newest step down. `run_dir` must be there."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / FILE_NAME
        self._written_at = float("-inf")

    def tell(
        self,
        report: StepReport,
        times: Sequence[tuple[Visit, VisitTimes]],
        links: Callable[[], Mapping[str, LinkStats]],
        *,
        started: float,
    ) -> None:
        """Write the step down, unless the last one is not a second old.

        `times` are those of its visits in order; `links` tells what crossed each link in the
        step, which began at `started` on the monotonic clock.
        """
        if monotonic() - self._written_at < LEAST_SECONDS:
            return
        self._written_at = monotonic()
        visits = [(visit.phase, one) for visit, one in times]
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(picture(report, visits, links(), started=started)))
        part.replace(self._path)


def picture(
    report: StepReport,
    visits: Sequence[tuple[Phase, VisitTimes]],
    links: Mapping[str, LinkStats],
    *,
    started: float,
) -> dict[str, Any]:
    """The step as `{step, seconds, lanes}`; a lane is a list of [what, from, to]."""
    seconds = report.step_seconds
    lanes = {"compute": compute_lane(report, visits)}
    for name, stats in links.items():
        inside = [(name, start - started, stop - started) for start, stop in stats.spans]
        lanes[name] = [
            (name, max(0.0, start), min(seconds, stop))
            for name, start, stop in inside
            if stop > 0 and start < seconds
        ]
    return {
        "step": report.step,
        "seconds": round(seconds, 6),
        "lanes": {name: _rounded(thinned(lane, seconds)) for name, lane in lanes.items()},
    }


def compute_lane(report: StepReport, visits: Sequence[tuple[Phase, VisitTimes]]) -> list[Piece]:
    """Waits and work of the visits, one after the other within their phase, then the commit.

    What a phase does beside its visits lies at the end of forward and backward, and before the
    visits of the optimizer, which wait for the norm.
    """
    lengths = {phase: getattr(report, f"{phase}_seconds") for phase in PHASES}
    at = max(0.0, report.step_seconds - report.commit_seconds - sum(lengths.values()))
    lane: list[Piece] = []
    for phase in PHASES:
        own = [times for name, times in visits if name == phase]
        end = at + lengths[phase]
        if phase == "optimizer":
            at = max(at, end - sum(times.stall_read + times.compute for times in own))
        for times in own:
            slot_at = at + times.waited_for_write
            lane.append(("stall_write", at, slot_at))
            lane.append(("stall_read", slot_at, at + times.stall_read))
            at += times.stall_read
            lane.append((phase, at, at + times.compute))
            at += times.compute
        at = end
    lane.append(("commit", at, at + report.commit_seconds))
    return lane


def thinned(lane: Sequence[Piece], seconds: float) -> list[Piece]:
    """The lane with neighbours of one kind as one, as close as it takes to have few enough."""
    gap = seconds / 5000
    while True:
        large = [piece for piece in _joined(lane, gap) if piece[2] - piece[1] >= gap / 2]
        kept = _joined(large, gap)
        if len(kept) <= MAX_SPANS:
            return kept
        gap *= 2


def _joined(lane: Sequence[Piece], gap: float) -> list[Piece]:
    kept: list[Piece] = []
    for what, start, stop in lane:
        if kept and kept[-1][0] == what and start - kept[-1][2] <= gap:
            kept[-1] = (what, kept[-1][1], max(stop, kept[-1][2]))
        else:
            kept.append((what, start, stop))
    return kept


def _rounded(lane: Sequence[Piece]) -> list[list[str | float]]:
    return [[what, round(start, 6), round(stop, 6)] for what, start, stop in lane]
