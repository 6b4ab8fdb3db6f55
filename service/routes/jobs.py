"""/v1/fine_tuning: jobs, what may be done to them, their checkpoints, plans."""

import re
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..answers import CheckpointPage, Freed, Job, JobPage, Plan
from ..contract import Daemon
from ..creation import Creation
from ..errors import ApiError
from ..jobs import IllegalMove, JobRecord, Status, UnknownId, check_move
from ..queue_times import look
from ..schemas import MAX_PAIRS, CreateJob, ResumeJob
from ..shapes import checkpoint_object, job_object, page, plan_object
from .common import (
    After,
    JobId,
    Limit,
    TheDaemon,
    Unchanged,
    require_job,
    told,
    unknown_after,
    with_etag,
)
from .description import BAD, MISSING, TOO_LARGE, UNCHANGED, answers

router = APIRouter(prefix="/v1/fine_tuning", tags=["fine-tuning"])

METADATA = {
    "name": "metadata",
    "in": "query",
    "style": "deepObject",
    "explode": True,
    "description": "`metadata[key]=value`: jobs that have all these pairs; `metadata=null`: none.",
    "schema": {
        "type": "object",
        "maxProperties": MAX_PAIRS,
        "propertyNames": {"minLength": 1},
        "additionalProperties": {"type": "string"},
    },
}
REPEATS = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same key with the same body makes one job, however often it comes; with "
    "another body it is refused.",
    "schema": {"type": "string", "minLength": 1},
}


@router.post("/jobs", openapi_extra={"parameters": [REPEATS]}, **answers(Job, BAD, TOO_LARGE))
async def create(body: CreateJob, request: Request, daemon: TheDaemon) -> dict[str, Any]:
    """Make a job; with `dry_run`, only its plan."""
    creation: Creation = request.app.state.creation
    if body.dry_run:
        return plan_object(*await creation.resolve(body))
    job = await creation.create(body, request.headers)
    return await daemon.journal.call(_shown, daemon, job)


@router.post("/plans", **answers(Plan, BAD))
async def plan(body: CreateJob, request: Request) -> dict[str, Any]:
    """What a job of this body would be and cost, without making it."""
    creation: Creation = request.app.state.creation
    return plan_object(*await creation.resolve(body))


@router.get("/jobs", openapi_extra={"parameters": [METADATA]}, **answers(JobPage, BAD))
def list_jobs(
    request: Request, daemon: TheDaemon, after: After = None, limit: Limit = 20
) -> Response:
    """Jobs, newest first, without their plans; `metadata[key]=value` filters, `metadata=null` finds
    those without.
    """
    pairs, without = _metadata(request)
    try:
        jobs = daemon.journal.jobs(
            after=after, limit=limit + 1, metadata=pairs, without_metadata=without
        )
    except UnknownId:
        raise unknown_after(after) from None
    places = look(daemon.journal)
    shown = [job_object(job, place=places.get(job.id), in_list=True) for job in jobs]
    return told(page(shown, limit))


@router.get("/jobs/{job_id}", **answers(Job, MISSING, UNCHANGED))
def retrieve(job_id: JobId, daemon: TheDaemon, known: Unchanged = None) -> Response:
    """One job, with an ETag for those who poll."""
    return with_etag(known, _shown(daemon, require_job(daemon, job_id)))


@router.post("/jobs/{job_id}/cancel", **answers(Job, BAD, MISSING))
async def cancel(job_id: JobId, daemon: TheDaemon) -> dict[str, Any]:
    """End a job for good."""
    return await _stop(daemon, job_id, "cancel", "cancelled")


@router.post("/jobs/{job_id}/pause", **answers(Job, BAD, MISSING))
async def pause(job_id: JobId, daemon: TheDaemon) -> dict[str, Any]:
    """Stop a job so that it can go on exactly where it was."""
    return await _stop(daemon, job_id, "pause", "paused")


@router.post("/jobs/{job_id}/resume", **answers(Job, BAD, MISSING))
async def resume(job_id: JobId, daemon: TheDaemon, body: ResumeJob | None = None) -> dict[str, Any]:
    """Put a paused job back in the queue; with new limits when it ran into those it had."""
    job = await daemon.journal.call(require_job, daemon, job_id)
    if job.status != "paused":
        raise IllegalMove(job_id, job.status, "queued")
    if body is not None:
        limits = body.limits.given()
        settings = {**job.engine.get("settings", {}), "limits": limits}
        changed = {"request": {**job.request, "limits": limits}}
        changed["engine"] = {**job.engine, "settings": settings}
        await daemon.journal.call(daemon.journal.set_fields, job_id, **changed)
    move = daemon.journal.move
    await daemon.journal.call(move, job_id, "queued", message="Resumed; waiting for its turn.")
    daemon.wake()
    return await daemon.journal.call(_shown_now, daemon, job_id)


@router.post("/jobs/{job_id}/free", **answers(Freed, BAD, MISSING))
def free(job_id: JobId, daemon: TheDaemon) -> dict[str, Any]:
    """Remove what an ended job still holds on the volumes: its state can then not be looked at."""
    job = require_job(daemon, job_id)
    if not job.is_terminal:
        message = f"Job {job_id} is {job.status}; its training state is still needed."
        raise ApiError(400, message, code="invalid_job_status", hint="Cancel it first.")
    return {"id": job_id, "object": "fine_tuning.job.state", "freed": daemon.free_job(job)}


@router.get("/jobs/{job_id}/checkpoints", **answers(CheckpointPage, BAD, MISSING))
def list_checkpoints(
    job_id: JobId, daemon: TheDaemon, after: After = None, limit: Limit = 10
) -> Response:
    """A job's checkpoints, newest first."""
    require_job(daemon, job_id)
    try:
        checkpoints = daemon.journal.checkpoints(job_id, after=after, limit=limit + 1)
    except UnknownId:
        raise unknown_after(after) from None
    return told(page([checkpoint_object(checkpoint) for checkpoint in checkpoints], limit))


def _metadata(request: Request) -> tuple[dict[str, str], bool]:
    """The pairs that jobs are to have, and whether they are to have none. ApiError (400)."""
    pairs: dict[str, str] = {}
    without = False
    for name, value in request.query_params.multi_items():
        key = re.fullmatch(r"metadata\[(.+)\]", name, re.DOTALL)
        if key:
            pairs[key[1]] = value
        elif (name, value) == ("metadata", "null"):
            without = True
        elif name.startswith("metadata"):
            message = f"{name} is {value!r:.80}; wanted metadata[key]=value, or metadata=null."
            raise ApiError(400, message, param="metadata", code="invalid_value")
    if len(pairs) > MAX_PAIRS:
        message = f"metadata has {len(pairs)} pairs; a job has {MAX_PAIRS} at most."
        raise ApiError(400, message, param="metadata", code="invalid_value")
    return pairs, without


async def _stop(
    daemon: Daemon, job_id: str, reason: Literal["cancel", "pause"], status: Status
) -> dict[str, Any]:
    job = await daemon.journal.call(require_job, daemon, job_id)
    check_move(job_id, job.status, status)
    await daemon.stop_job(job_id, reason)
    return await daemon.journal.call(_shown_now, daemon, job_id)


def _shown_now(daemon: Daemon, job_id: str) -> dict[str, Any]:
    return _shown(daemon, require_job(daemon, job_id))


def _shown(daemon: Daemon, job: JobRecord) -> dict[str, Any]:
    place = look(daemon.journal).get(job.id) if job.status == "queued" else None
    return job_object(job, place=place)
