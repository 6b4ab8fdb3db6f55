"""What a run leaves behind for people: the names of its models, and the table of its steps."""

import csv
import hashlib
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .event_log import EventReader, LoggedEvent
from .jobs import FileRecord, JobRecord
from .rates import REWARDS
from .whole_file import write_whole

COLUMNS = (
    "step",
    "train_loss",
    "train_accuracy",
    "router_aux_loss",
    "valid_loss",
    "valid_mean_token_accuracy",
    "learning_rate",
    "grad_norm",
    "clip_factor",
    "num_tokens",
    "num_computed_tokens",
    "num_trained_tokens",
    "step_seconds",
)
REWARD_COLUMNS = (*REWARDS, *(f"valid_{name}" for name in REWARDS))  # of jobs on preferences
RENAMED = {"loss": "train_loss", "token_accuracy": "train_accuracy"}
EVAL_NAMES = {
    "eval_loss": "valid_loss",
    "eval_token_accuracy": "valid_mean_token_accuracy",
    **{f"eval_{name}": f"valid_{name}" for name in REWARDS},
}


def model_name(job: JobRecord) -> str:
    """The name of the model that a job makes: ft:{base}:headrace:{suffix}:{id}."""
    base = job.model.split(":")[1] if job.model.startswith("ft:") else job.model
    return f"ft:{base}:headrace:{job.suffix or ''}:{job.id}"


def checkpoint_name(job: JobRecord, step: int) -> str:
    """The name of a job's listed checkpoint."""
    return f"{model_name(job)}:ckpt-step-{step}"


def checkpoint_metrics(event: LoggedEvent) -> dict[str, Any]:
    """The metrics of a checkpoint in the names of OpenAI; None for what was not measured."""
    data = event.data
    return {
        "step": event.step or 0,
        "train_loss": data.get("train_loss"),
        "train_mean_token_accuracy": data.get("train_token_accuracy"),
        "valid_loss": data.get("eval_loss"),
        "valid_mean_token_accuracy": data.get("eval_token_accuracy"),
        "full_valid_loss": data.get("eval_loss"),
        "full_valid_mean_token_accuracy": data.get("eval_token_accuracy"),
    }


def error_code(kind: str) -> str:
    """The name of an exception as the code of an error: NoSpace becomes no_space."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower()


def write_result_file(job_id: str, log: Path, files_dir: Path) -> FileRecord:
    """Write the table of a job's steps as CSV, and return the record to add to the journal.

    The id follows from the job's, so that writing it again after a crash makes no second file.
    """
    file_id = f"file-{job_id.removeprefix('ftjob-')}"
    path = files_dir / file_id
    rows = list(_rows(log))
    rewards = REWARD_COLUMNS if any("reward_margin" in row for row in rows) else ()
    with write_whole(path) as file:
        table = csv.DictWriter(file, (*COLUMNS, *rewards), extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
    content = path.read_bytes()
    return FileRecord(
        id=file_id,
        bytes=len(content),
        created_at=int(time.time()),
        filename="step_metrics.csv",
        purpose="fine-tune-results",
        path=str(path),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _rows(log: Path) -> Iterable[dict[str, Any]]:
    """One row a step, the newest report of it; evaluations stand with their step."""
    rows: dict[int, dict[str, Any]] = {}
    reader = EventReader(log)
    while events := reader.read():
        for event in events:
            if event.step is not None and event.type in ("metrics", "eval"):
                row = rows.setdefault(event.step, {"step": event.step})
                row.update(_named(event))
    return (rows[step] for step in sorted(rows))


def _named(event: LoggedEvent) -> dict[str, Any]:
    names = RENAMED if event.type == "metrics" else EVAL_NAMES
    return {names.get(name, name): value for name, value in event.data.items() if name != "step"}
