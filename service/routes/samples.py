"""/v1/fine_tuning/jobs/{id}/samples: texts that the model wrote at a job's evaluations."""

from fastapi import APIRouter
from fastapi.responses import Response

from ..jobs import UnknownId
from ..none_told import why_no_samples
from ..shapes import page, samples_object
from ..told_answers import SamplePage
from .common import After, JobId, Limit, TheDaemon, require_job, told, unknown_after
from .description import BAD, MISSING, answers

router = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}", tags=["events"])


@router.get("/samples", **answers(SamplePage, BAD, MISSING))
def list_samples(
    job_id: JobId, daemon: TheDaemon, after: After = None, limit: Limit = 20
) -> Response:
    """What the model wrote for each prompt, by evaluation, newest first; `reason` says why none."""
    job = require_job(daemon, job_id)
    try:
        found = daemon.journal.events(job_id, type="samples", after_id=after, limit=limit + 1)
    except UnknownId:
        raise unknown_after(after) from None
    reason = None if found or after else why_no_samples(job)
    return told({**page([samples_object(event) for event in found], limit), "reason": reason})
