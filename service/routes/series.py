"""/v1/fine_tuning/jobs/{id}/series: a job's numbers as columns, to draw curves from."""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from ..answers import Series, Timeline
from ..contract import Daemon
from ..series_table import EVAL_COLUMNS, STEP_COLUMNS, columns
from ..strict import Whole
from .common import JobId, TheDaemon, require_job, told
from .description import BAD, MISSING, answers

router = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}", tags=["events"])

MAX_POINTS = 5000
First = Annotated[int, Whole(0), Query(description="The first step that is wanted.")]
Last = Annotated[
    int | None, Whole(0), Query(description="The last step that is wanted; the newest, left out.")
]
Points = Annotated[int, Whole(2, MAX_POINTS), Query(description="So many steps at most, thinned.")]


@router.get("/series", **answers(Series, BAD, MISSING))
def series(
    job_id: JobId,
    daemon: TheDaemon,
    first: First = 0,
    last: Last = None,
    points: Points = 2000,
) -> Response:
    """Loss, rates and times of the steps first..last, one column each.

    With more steps than `points` every n-th is given (`every`). A stream that resumes after
    `last_seq` tells all that came later.
    """
    require_job(daemon, job_id)
    return told(series_object(daemon, job_id, first=first, last=last, points=points))


@router.get("/timeline", **answers(Timeline, MISSING))
def timeline(job_id: JobId, daemon: TheDaemon) -> Response:
    """The newest step lane by lane: spans in seconds from its start; `step` is null without one."""
    require_job(daemon, job_id)
    path = daemon.settings.jobs_dir / job_id / "timeline.json"
    try:
        spans = json.loads(path.read_bytes())
    except FileNotFoundError:
        spans = {"step": None, "seconds": None, "lanes": {}}
    return told({"object": "fine_tuning.job.timeline", **spans})


def series_object(
    daemon: Daemon, job_id: str, *, first: int = 0, last: int | None = None, points: int
) -> dict[str, Any]:
    """The answer, for a job that is there."""
    journal = daemon.journal
    last_seq = journal.last_event_seq(job_id)  # before the rest: what comes meanwhile is told twice
    newest = journal.last_step(job_id)
    last = newest if last is None else min(last, newest)
    every, steps = journal.step_numbers(job_id, first=first, last=last, points=points)
    evaluations = journal.evaluations(job_id, first=first, last=last)
    return {
        "object": "fine_tuning.job.series",
        "last_seq": last_seq,
        "first": first,
        "last": last,
        "every": every,
        "steps": columns(steps, STEP_COLUMNS),
        "evaluations": columns(evaluations, EVAL_COLUMNS),
        "newest": steps[-1] if steps else None,
    }
