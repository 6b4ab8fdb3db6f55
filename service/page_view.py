"""What the pages show: the journal's records and the daemon's status, put together for templates.

Every function reads the journal and is called in a thread.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from .contract import Daemon
from .form_fields import common_fields, other_fields, run_fields
from .formats import pick
from .jobs import EventRecord, JobRecord
from .model_names import base_models, made_models
from .plan_view import advice, homes, plan_groups
from .queue_times import look
from .shapes import (
    checkpoint_object,
    event_object,
    file_object,
    job_object,
    row_losses_object,
    samples_object,
)
from .status import daemon_status
from .templating import compile_all

PAGE_JOBS = 20
SHOWN_EVENTS = 50
SHOWN_CHECKPOINTS = 50
SHOWN_SAMPLES = 8  # evaluations
SHOWN_CHOICES = 20  # of the files, of the models made by jobs; the form finds the others
SHOWN_BASE_MODELS = 50
ROADS = {
    "direct": "straight to the drive",
    "buffered": "the page cache",
    "gds-nvfs": "GPUDirect Storage",
    "gds-p2pdma": "GPUDirect Storage (P2PDMA)",
}


def make_ready() -> None:
    """Do once what every page needs, so that the first one comes as fast as the next."""
    compile_all()
    for fields in (common_fields, other_fields, run_fields):
        fields()


def overview(daemon: Daemon, *, after: str | None = None) -> dict[str, Any]:
    """The box, the queue, a page of jobs. UnknownId when there is no job `after`."""
    records = daemon.journal.jobs(after=after, limit=PAGE_JOBS + 1)
    jobs = [job_object(job) for job in records[:PAGE_JOBS]]
    status = daemon_status(daemon)
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(status["jobs"].items()))
    return {
        "status": status,
        "jobs": jobs,
        "older": jobs[-1]["id"] if len(records) > PAGE_JOBS else None,
        "is_older": after is not None,
        "counts": counts.replace("validating_files", "preparing"),
        "roads": ROADS,
        "memory_budget": _memory_budget(status),
    }


def job_view(daemon: Daemon, job_id: str) -> dict[str, Any] | None:
    """One job with all that is known of it; None when there is no such job."""
    journal = daemon.journal
    job = journal.job(job_id)
    if job is None:
        return None
    last_seq = journal.last_event_seq(job_id)  # first: what comes meanwhile is told by the stream
    newest = journal.events(job_id, type="metrics", limit=1)
    state = {
        **job_object(job, place=look(journal).get(job_id)),
        "report": newest[0].data if newest else None,
        "tier": daemon.hub.telemetry(job_id),
    }
    plan = job.engine.get("plan") or {}
    events = journal.story(job_id, limit=SHOWN_EVENTS + 1)
    held = journal.checkpoints(job_id, limit=SHOWN_CHECKPOINTS)
    told = journal.events(job_id, type="row_losses", limit=1)
    files = [journal.file(name) for name in (job.training_file, job.validation_file) if name]
    return {
        "job": state,
        "last_seq": last_seq,
        "is_over": job.is_terminal,
        "files": {file.id: file.filename for file in files if file},
        "results": [file_object(f) for name in job.result_files if (f := journal.file(name))],
        "has_export": bool(job.fine_tuned_model and journal.model(job.fine_tuned_model)),
        "exports": job.engine.get("exports", []),
        "checkpoints": [checkpoint_object(checkpoint) for checkpoint in held],
        "events": _without_repeats(event_object(event) for event in events[:SHOWN_EVENTS]),
        "has_more_events": len(events) > SHOWN_EVENTS,
        "reports": journal.data_reports(job_id),
        "row_losses": row_losses_object(told[0]) if told else None,
        "samples": sample_groups(journal.events(job_id, type="samples", limit=SHOWN_SAMPLES)),
        "plan": plan_groups(plan, on_cpu=pick(job.engine, "settings.device") == "cpu"),
        "homes": homes(plan),
        "advice": advice(plan),
        "on_cpu": pick(job.engine, "settings.device") == "cpu",
        "sentence": pick(plan, "forecast.sentence"),
        "settings": settings_rows(job),
    }


def new_view(daemon: Daemon) -> dict[str, Any]:
    """What a job can be made of: models, files, settings.

    However many models and files there are, the newest few stand on the form, and with `more` a
    field that finds the others.
    """
    files = daemon.journal.files(purpose="fine-tune", limit=SHOWN_CHOICES + 1)
    made = made_models(daemon.journal, limit=SHOWN_CHOICES + 1)
    base = list(islice(base_models(daemon.settings.models_dir), SHOWN_BASE_MODELS + 1))
    return {
        "base_models": [model.name for model in base[:SHOWN_BASE_MODELS]],
        "made_models": [model.name for model in made[:SHOWN_CHOICES]],
        "more_models": len(made) > SHOWN_CHOICES or len(base) > SHOWN_BASE_MODELS,
        "models_dirs": [str(path) for path in daemon.settings.models_dir],
        "files": [file_object(file) for file in files[:SHOWN_CHOICES]],
        "more_files": len(files) > SHOWN_CHOICES,
        "groups": [("Learning", common_fields())],
        "more": [("More about learning", other_fields()), ("How it runs", run_fields())],
        "max_file_bytes": daemon.settings.max_file_bytes,
    }


def _memory_budget(status: Mapping[str, Any]) -> int | None:
    """Bytes of main memory that jobs may take; on a CPU both tiers are of it. None: no limit."""
    budgets = status.get("budgets") or {}
    tiers = ("host", "device") if pick(status, "device.type") == "cpu" else ("host",)
    total = 0
    for tier in tiers:
        if (size := budgets.get(f"{tier}_bytes")) is None:
            return None
        total += size
    return total


def sample_groups(events: Sequence[EventRecord]) -> list[dict[str, Any]]:
    """Sample texts by prompt: what is the same at all evaluations, and the texts, newest first."""
    groups: dict[str, dict[str, Any]] = {}
    for told in map(samples_object, events):
        for one in told["samples"]:
            group = groups.setdefault(one["source"], {**one, "texts": []})
            group["texts"].append({**one, "step": told["step_number"]})
    return list(groups.values())


def settings_rows(job: JobRecord) -> list[tuple[str, str]]:
    """Everything that was settled for the job, by name."""
    flat = {**job.hyperparameters, **(job.engine.get("settings") or {}), "seed": job.seed}
    return [(name, _told(value)) for name, value in flat.items() if value is not None]


def _without_repeats(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of those that say the same in a row: a long phase says again that it goes on."""
    return [next(same) for _, same in groupby(events, key=itemgetter("message"))]


def _told(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(_told, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {inner}" for name, inner in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
