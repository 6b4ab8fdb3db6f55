"""All that it takes to make a job's weights again, and to know whether they are the same.

One JSON document: what was asked, with nothing left open, the data by their hashes, what it ran on,
how it learned, and the hashes of what came out. Neither rows nor weights are in it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.engine import TrainConfig

from .bundle_format import FORMAT
from .errors import ApiError
from .job_state import spec_of
from .jobs import JobRecord
from .journal import Journal
from .series_table import EVAL_COLUMNS, columns

CURVE_POINTS = 5000
CURVE = ("train_loss", "grad_norm", "learning_rate")
# Not asked for again: where the first one came from, and what it had to wait for.
LEFT_OUT = ("resume_from", "dry_run", "priority", "limits", "metadata")
SETTLED = ("compute_dtype", "state_format", "deterministic")


def bundle_of(journal: Journal, jobs_dir: Path, job: JobRecord) -> dict[str, Any]:
    """The bundle of a job that has been prepared; ApiError (400) before that."""
    spec = spec_of(jobs_dir, job.id)
    if spec is None:
        message = f"Job {job.id} is {job.status} and was never prepared; there is no bundle of it."
        raise ApiError(400, message, code="not_prepared")
    plan = dict(job.engine.get("plan") or {})
    last = journal.last_step(job.id)
    every, steps = journal.step_numbers(job.id, first=0, last=last, points=CURVE_POINTS)
    evaluations = journal.evaluations(job.id, first=0, last=last)
    return {
        "object": "fine_tuning.job.bundle",
        "format": FORMAT,
        "job": {"id": job.id, "status": job.status, "created_at": job.created_at,
                "finished_at": job.finished_at, "fine_tuned_model": job.fine_tuned_model},
        "request": replay_request(job),
        "config": spec,
        "numerics_key": TrainConfig.from_dict(spec).numerics_key,
        "surroundings": plan.pop("surroundings", None),
        "plan": plan,
        "data": list(_data(journal, job)),
        "curve": {
            "every": every,
            "steps": columns(steps, CURVE),
            "evaluations": columns(evaluations, EVAL_COLUMNS),
        },
        "trained_tokens": job.trained_tokens,
        "exports": job.engine.get("exports", []),
    }  # fmt: skip


def replay_request(job: JobRecord) -> dict[str, Any]:
    """A create body that makes a job of the same bits, on the same rows."""
    settings = job.engine.get("settings") or {}
    asked = {name: value for name, value in job.request.items() if name not in LEFT_OUT}
    settled = {name: settings[name] for name in SETTLED if name in settings}
    return {**asked, **settled, "method": job.method, "seed": job.seed}


def _data(journal: Journal, job: JobRecord) -> list[dict[str, Any]]:
    """Each file by its hash, with its data report, but for the rows that the report shows."""
    reports = {report["param"]: report for report in journal.data_reports(job.id)}
    found = []
    for param in ("training_file", "validation_file"):
        file = journal.file(getattr(job, param) or "")
        if file is None:
            continue
        report: Mapping[str, Any] = reports.get(param, {})
        shown = {name: value for name, value in report.items() if name not in ("param", "preview")}
        found.append(
            {
                "param": param,
                "id": file.id,
                "filename": file.filename,
                "bytes": file.bytes,
                "sha256": file.sha256,
                "report": shown,
            }
        )
    return found
