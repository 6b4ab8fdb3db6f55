"""/v1/fine_tuning/jobs/{id}/row_losses: the training rows whose loss stands out."""

from fastapi import APIRouter
from fastapi.responses import Response

from ..none_told import why_no_rows
from ..shapes import row_losses_object
from ..told_answers import RowLosses
from .common import JobId, TheDaemon, require_job, told
from .description import MISSING, answers

router = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}", tags=["events"])


@router.get("/row_losses", **answers(RowLosses, MISSING))
def row_losses(job_id: JobId, daemon: TheDaemon) -> Response:
    """Rows far above or below the others in every epoch so far, with their lines in the file.

    Told at the end of each epoch. Before the first, and where too few rows were seen, there are
    none, `step_number` is null, and `reason` says why.
    """
    job = require_job(daemon, job_id)
    found = daemon.journal.events(job_id, type="row_losses", limit=1)
    return told(row_losses_object(found[0] if found else None, reason=why_no_rows(job)))
