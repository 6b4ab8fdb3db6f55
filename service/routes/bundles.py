"""/v1/fine_tuning/jobs/{id}/bundle: what it takes to make a job's weights again."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from ..bundle import bundle_of
from ..export_answers import Bundle
from ..filenames import attachment
from .common import JobId, TheDaemon, require_job
from .description import BAD, MISSING, answers

router = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}", tags=["fine-tuning"])


@router.get("/bundle", **answers(Bundle, BAD, MISSING))
def bundle(job_id: JobId, daemon: TheDaemon) -> JSONResponse:
    """Settled request, configuration, hashes of data and weights, versions, hardware, curve."""
    job = require_job(daemon, job_id)
    made = bundle_of(daemon.journal, daemon.settings.jobs_dir, job)
    headers = {"content-disposition": attachment(f"{job_id}.bundle.json")}
    return JSONResponse(made, headers=headers)
