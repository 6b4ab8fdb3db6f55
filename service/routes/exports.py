"""/v1/fine_tuning/jobs/{id}/export: a job's model, or one of its checkpoints, as one download.

And what was found when the exports were read back.
"""

from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, StreamingResponse

from ..archive import Archive
from ..contract import Daemon
from ..downloads import download
from ..errors import ApiError, printable
from ..export_answers import ExportReports
from ..filenames import attachment
from ..jobs import JobRecord
from .common import JobId, TheDaemon, require_job
from .description import MISSING, answers
from .files import BYTES, OCTETS

router = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}", tags=["fine-tuning"])

Checkpoint = Annotated[
    str | None, Query(description="The id or name of one of the job's checkpoints, instead.")
]
SHOWN_CHECKPOINTS = 5  # of those that there are, to whoever asks for another
TAR = {"description": "A tar archive", "content": {"application/x-tar": {}}}


@router.get("/export", response_class=StreamingResponse, responses={200: TAR, **MISSING})
def export(job_id: JobId, daemon: TheDaemon, checkpoint: Checkpoint = None) -> StreamingResponse:
    """The fine-tuned model as a Hugging Face folder in a tar archive; or that checkpoint."""
    job = require_job(daemon, job_id)
    folder = _checkpoint_folder(daemon, job, checkpoint) if checkpoint else _folder(daemon, job)
    if not folder.is_dir():
        raise _gone(job_id)
    name = job_id if checkpoint is None else f"{job_id}-{folder.name}"
    try:
        archive = Archive.of(folder, name)
    except FileNotFoundError:  # removed meanwhile
        raise _gone(job_id) from None
    return StreamingResponse(
        archive.chunks(),
        media_type="application/x-tar",
        headers={
            "content-length": str(archive.num_bytes),
            "content-disposition": attachment(f"{name}.tar"),
        },
    )


@router.get("/export/gguf", response_class=FileResponse, responses={**BYTES, **MISSING})
def gguf(job_id: JobId, request: Request, daemon: TheDaemon) -> FileResponse:
    """The GGUF file that a job made beside its model; ranges are served."""
    report = _reports(require_job(daemon, job_id)).get("gguf")
    if report is None:
        message = f"Job {job_id} has made no GGUF file; ask for one with export."
        raise ApiError(404, message, code="export_not_found")
    (name,) = (file["name"] for file in report["files"])
    path = Path(report["path"]) / name
    headers = {"content-disposition": attachment(f"{job_id}-{name}")}
    try:
        return download(request, path, media_type=OCTETS, headers=headers)
    except FileNotFoundError:
        raise _gone(job_id) from None


@router.get("/export/reports", **answers(ExportReports, MISSING))
def reports(job_id: JobId, daemon: TheDaemon) -> dict[str, Any]:
    """What each export of a job holds, and how far its logits are from those that were trained."""
    found = list(_reports(require_job(daemon, job_id)).values())
    return {"object": "list", "data": found}


def _reports(job: JobRecord) -> dict[str, dict[str, Any]]:
    return {report["format"]: report for report in job.engine.get("exports", [])}


def _gone(job_id: str) -> ApiError:
    return ApiError(404, f"The files of {job_id} are gone.", code="export_not_found")


def _folder(daemon: Daemon, job: JobRecord) -> Path:
    made = daemon.journal.model(job.fine_tuned_model) if job.fine_tuned_model else None
    if made is None:
        message = f"Job {job.id} is {job.status}; it has no model to export."
        raise ApiError(404, message, code="export_not_found")
    return Path(made.path)


def _checkpoint_folder(daemon: Daemon, job: JobRecord, name: str) -> Path:
    held = daemon.journal.checkpoint(name)
    if held is None or held.job_id != job.id:
        found = daemon.journal.checkpoints(job.id, limit=SHOWN_CHECKPOINTS)
        ids = ", ".join(f"{one.id} (step {one.step})" for one in found)
        raise ApiError(
            404,
            f"Job {job.id} has no checkpoint {printable(name)!r:.80}.",
            param="checkpoint",
            code="checkpoint_not_found",
            hint=f"It has, newest first: {ids}." if found else "It has none.",
        )
    return Path(held.path)
