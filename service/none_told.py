"""Why a job has told of no row, or written no text: said where there is none. Pure."""

from typing import Any

from headrace.engine import FEWEST_ROWS

from .jobs import JobRecord

BEFORE = "the job is from before Headrace {did}; submit it again to have {what}"


def why_no_rows(job: JobRecord) -> str:
    """Why no rows of the job stand out so far: it does not compare them, or has not yet."""
    settled = job.hyperparameters
    if job.method.get("type", "supervised") == "dpo":
        return "rows are compared by the loss of one answer; this job is of preferences (dpo)"
    if "row_losses" not in settled:
        return BEFORE.format(did="kept the losses of rows", what="them")
    if not settled["row_losses"]:
        return "the job was told not to keep the losses of rows (row_losses false)"
    enough = f"where {FEWEST_ROWS} rows or more were seen"
    if job.status == "succeeded":
        return f"rows are compared {enough} in an epoch; this job saw fewer"
    if job.is_terminal:
        return f"rows are compared at the end of each epoch; the job {_ended(job)} before one"
    return f"rows are compared at the end of each epoch, {enough}; {_stands(job)}"


def why_no_samples(job: JobRecord) -> str:
    """Why the job has written no texts so far: it was given no prompts, or has not come to it."""
    settled = job.hyperparameters
    if "sample_rows" not in settled:
        return BEFORE.format(did="wrote sample texts", what="some")
    if not settled["sample_rows"] and not settled.get("sample_prompts"):
        return (
            "the job was asked for none; give sample_prompts, or sample_rows of the validation rows"
        )
    if job.status == "succeeded":
        return f"none of its prompts could be written on from; `headrace logs {job.id}` says why"
    if job.is_terminal:
        return f"texts are written at evaluations; the job {_ended(job)} before one"
    return f"texts are written at evaluations, the first before step 1; {_stands(job)}"


def _ended(job: JobRecord) -> str:
    return f"{job.status} at step {_step(job)}"


def _stands(job: JobRecord) -> str:
    total: Any = job.engine.get("total_steps")
    of = f" of {total}" if total else ""
    return f"the job is {job.status}, at step {_step(job)}{of}"


def _step(job: JobRecord) -> int:
    return int(job.engine.get("step") or 0)
