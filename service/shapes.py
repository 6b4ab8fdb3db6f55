"""What the API answers: journal records in the OpenAI shapes, with our fields beside theirs. Pure.

Clients of the OpenAI API ignore fields that they do not know.
"""

import time
from collections.abc import Sequence
from typing import Any

from .contract import Resolved
from .jobs import (
    CheckpointRecord,
    EventRecord,
    FileRecord,
    JobRecord,
    PartRecord,
    UploadRecord,
)
from .method import kind_of
from .model_names import NamedModel
from .queue_times import Place

ORGANIZATION = "headrace"


def job_object(
    job: JobRecord, *, place: Place | None = None, in_list: bool = False
) -> dict[str, Any]:
    """A fine-tuning job; `engine` holds what only Headrace tells, in a list no plan or exports."""
    engine: dict[str, Any] = {
        "phase": job.phase,
        "started_at": job.started_at,
        "priority": job.priority,
    }
    if place is not None:
        engine |= {
            "queue_position": place.position,
            "estimated_start": place.estimated_start,
            "estimated_finish": place.estimated_finish,
            "waits_for": place.waits_for,
        }
    return {
        "id": job.id,
        "object": "fine_tuning.job",
        "created_at": job.created_at,
        "finished_at": job.finished_at,
        "estimated_finish": _estimated_finish(job),
        "model": job.model,
        "fine_tuned_model": job.fine_tuned_model,
        "organization_id": ORGANIZATION,
        "status": job.status,
        "training_file": job.training_file,
        "validation_file": job.validation_file,
        "result_files": job.result_files,
        "hyperparameters": job.hyperparameters if kind_of(job.request) == "supervised" else {},
        "method": job.method,
        "seed": job.seed,
        "trained_tokens": job.trained_tokens,
        "error": job.error and {"code": None, "message": "", "param": None} | job.error,
        "integrations": job.request.get("integrations") or [],
        "metadata": job.metadata,
        "user_provided_suffix": job.suffix,
        "engine": {
            name: value
            for name, value in {**job.engine, **engine}.items()
            if not (in_list and name in ("plan", "exports"))
        },
    }


def event_object(event: EventRecord) -> dict[str, Any]:
    """A job event. `type` is one of OpenAI's two; `kind` is the finer word."""
    return {
        "id": event.id,
        "object": "fine_tuning.job.event",
        "created_at": event.created_at,
        "level": event.level,
        "message": event.message,
        "type": "metrics" if event.type == "metrics" else "message",
        "data": event.data,
        "kind": event.type,
        "seq": event.seq,
        "step": event.step,
    }


def samples_object(event: EventRecord) -> dict[str, Any]:
    """The texts that the weights of a step wrote."""
    data = event.data or {}
    return {
        "id": event.id,
        "object": "fine_tuning.job.samples",
        "created_at": event.created_at,
        "step_number": event.step or 0,
        "temperature": data.get("temperature", 0.0),
        "samples": data.get("samples", []),
    }


def row_losses_object(event: EventRecord | None, *, reason: str | None = None) -> dict[str, Any]:
    """The rows whose loss stands out; none before it was told, for that `reason`."""
    none: dict[str, Any] = {"count": 0, "rows": []}
    empty = {"num_rows": 0, "medians": [], "above": none, "below": none, "not_finite": none}
    return {
        "object": "fine_tuning.job.row_losses",
        "step_number": event and event.step,
        "reason": None if event else reason,
        **empty,
        **((event and event.data) or {}),
    }


def checkpoint_object(checkpoint: CheckpointRecord) -> dict[str, Any]:
    """A listed checkpoint."""
    return {
        "id": checkpoint.id,
        "object": "fine_tuning.job.checkpoint",
        "created_at": checkpoint.created_at,
        "step_number": checkpoint.step,
        "fine_tuned_model_checkpoint": checkpoint.name,
        "fine_tuning_job_id": checkpoint.job_id,
        "metrics": {"step": checkpoint.step} | checkpoint.metrics,
    }


def file_object(file: FileRecord) -> dict[str, Any]:
    """An uploaded file or a job's result file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_at,
        "expires_at": file.expires_at,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": file.status,
        "status_details": None,
        "sha256": file.sha256,
    }


def upload_object(upload: UploadRecord, file: FileRecord | None) -> dict[str, Any]:
    """An upload in parts, with the file that it became."""
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": upload.created_at,
        "expires_at": upload.expires_at,
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": upload.status,
        "file": file and file_object(file),
    }


def part_object(part: PartRecord) -> dict[str, Any]:
    """One part of an upload."""
    return {
        "id": part.id,
        "object": "upload.part",
        "bytes": part.bytes,
        "created_at": part.created_at,
        "upload_id": part.upload_id,
    }


def model_object(model: NamedModel) -> dict[str, Any]:
    """A model that a job can start from."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": ORGANIZATION if model.is_fine_tuned else "local",
        "path": str(model.path),
    }


def plan_object(body: dict[str, Any], resolved: Resolved) -> dict[str, Any]:
    """What a job would be and cost, without the job."""
    return {
        "object": "fine_tuning.plan",
        "model": body["model"],
        "method": resolved.method,
        "hyperparameters": resolved.hyperparameters,
        "seed": resolved.seed,
        "plan": resolved.plan,
        "settings": resolved.settings,
        "warnings": list(resolved.warnings),
    }


def page(items: Sequence[dict[str, Any]], limit: int) -> dict[str, Any]:
    """A page of a list, from `limit` + 1 items: the one too many says that there are more."""
    shown = list(items[:limit])
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(items) > limit,
    }


def _estimated_finish(job: JobRecord) -> int | None:
    left = job.engine.get("eta_s") if job.status == "running" else None
    return None if left is None else int(time.time() + left)
