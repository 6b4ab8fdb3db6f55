"""/v1/fine_tuning/jobs/{id}/export: a job's model, or one of its checkpoints, as one download."""

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from ..archive import Archive
from ..contract import Daemon
from ..errors import ApiError, not_found
from ..jobs import JobRecord
from .common import TheDaemon, require_job
from .description import MISSING

router = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}", tags=["fine-tuning"])

TAR = {"description": "A tar archive", "content": {"application/x-tar": {}}}


@router.get("/export", response_class=StreamingResponse, responses={200: TAR, **MISSING})
def export(
    job_id: str, daemon: TheDaemon, checkpoint: Annotated[str | None, Query()] = None
) -> StreamingResponse:
    """The fine-tuned model as a Hugging Face folder in a tar archive; or that checkpoint."""
    job = require_job(daemon, job_id)
    folder = _checkpoint_folder(daemon, job, checkpoint) if checkpoint else _folder(daemon, job)
    if not folder.is_dir():
        raise ApiError(404, f"The files of {job_id} are gone.", code="export_not_found")
    name = job_id if checkpoint is None else f"{job_id}-{folder.name}"
    archive = Archive.of(folder, name)
    return StreamingResponse(
        archive.chunks(),
        media_type="application/x-tar",
        headers={
            "content-length": str(archive.num_bytes),
            "content-disposition": f'attachment; filename="{name}.tar"',
        },
    )


def _folder(daemon: Daemon, job: JobRecord) -> Path:
    made = daemon.journal.model(job.fine_tuned_model) if job.fine_tuned_model else None
    if made is None:
        message = f"Job {job.id} is {job.status}; it has no model to export."
        raise ApiError(404, message, code="export_not_found")
    return Path(made.path)


def _checkpoint_folder(daemon: Daemon, job: JobRecord, name: str) -> Path:
    held = daemon.journal.checkpoint(name)
    if held is None or held.job_id != job.id:
        raise not_found("checkpoint", name, param="checkpoint")
    return Path(held.path)
