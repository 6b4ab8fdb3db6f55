"""What a job can be and how it may change: statuses, legal moves, the record. Pure."""

import secrets
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Status = Literal[
    "validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"
]
STATUSES: tuple[Status, ...] = get_args(Status)
TERMINAL: frozenset[Status] = frozenset({"succeeded", "failed", "cancelled"})

# running -> queued: the worker or the daemon went away and the job waits to go on.
# queued -> validating_files: its files are prepared only when its turn comes.
MOVES: dict[Status, frozenset[Status]] = {
    "validating_files": frozenset({"queued", "paused", "failed", "cancelled"}),
    "queued": frozenset({"validating_files", "running", "paused", "failed", "cancelled"}),
    "running": frozenset({"queued", "paused", "succeeded", "failed", "cancelled"}),
    "paused": frozenset({"queued", "failed", "cancelled"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}

Level = Literal["info", "warn", "error"]


class IllegalMove(ValueError):
    """A job was asked to go from a status to one that does not follow it."""

    def __init__(self, job_id: str, before: str, after: str) -> None:
        super().__init__(f"job {job_id} is {before} and cannot become {after}")
        self.job_id = job_id
        self.before = before
        self.after = after


class InUse(RuntimeError):
    """A file or a model cannot be removed: `users` are the jobs that have not ended and need it."""

    def __init__(self, name: str, users: list[str]) -> None:
        super().__init__(f"{name} is in use by {', '.join(users)}")
        self.users = users


class UnknownId(KeyError):
    """A list was asked for what comes after something that is not on it."""


def check_move(job_id: str, before: Status, after: Status) -> None:
    """Raise IllegalMove unless `after` may follow `before`."""
    if after not in MOVES[before]:
        raise IllegalMove(job_id, before, after)


def new_id(prefix: str) -> str:
    """A fresh id such as `ftjob-` followed by 24 hexadecimal digits."""
    return prefix + secrets.token_hex(12)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as the journal holds it. Times are whole seconds since 1970.

    `request` is the create body as sent; `method` and `hyperparameters` hold resolved numbers;
    `engine` is the extension object that answers carry: phase, step, loss, rates, plan, warnings.
    """

    id: str
    status: Status
    model: str
    training_file: str
    seed: int
    created_at: int
    phase: str | None = None
    validation_file: str | None = None
    suffix: str | None = None
    metadata: dict[str, str] | None = None
    method: dict[str, Any] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    started_at: int | None = None
    finished_at: int | None = None
    fine_tuned_model: str | None = None
    trained_tokens: int | None = None
    error: dict[str, Any] | None = None
    result_files: list[str] = field(default_factory=list)
    engine: dict[str, Any] = field(default_factory=dict)
    priority: int = 0

    @property
    def is_terminal(self) -> bool:
        """Whether the job has ended for good."""
        return self.status in TERMINAL

    @property
    def state_name(self) -> str:
        """The name of its training state on the volumes: its own id, or whose it goes on with."""
        return str(self.engine.get("state_name") or self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """One thing that happened to a job. `seq` counts the job's events from 1, without reuse.

    `type` is the engine's word (phase, message, metrics, …) or `status` for a move. `worker_seq`
    is the event's number in the worker's own log, None when it was made here.
    """

    id: str
    job_id: str
    seq: int
    created_at: int
    level: Level
    type: str
    message: str
    step: int | None = None
    data: dict[str, Any] | None = None
    worker_seq: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A listed checkpoint: `name` is its model id, `path` its folder."""

    id: str
    job_id: str
    step: int
    name: str
    path: str
    metrics: dict[str, Any]
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """An uploaded or a result file: `path` is where its bytes lie."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    path: str
    sha256: str
    expires_at: int | None = None
    status: str = "processed"


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRecord:
    """A file that comes in parts: `bytes` is what it is to have, `part_ids` what it was made of.

    `file_expires_after` (seconds) is for the file, `expires_at` for the upload.
    """

    id: str
    bytes: int
    filename: str
    purpose: str
    created_at: int
    expires_at: int
    file_expires_after: int | None = None
    status: Literal["pending", "completed", "cancelled", "expired"] = "pending"
    part_ids: list[str] | None = None

    @property
    def file_id(self) -> str:
        """The id of the file that it becomes; known before, so that no crash can lose track."""
        return "file-" + self.id.removeprefix("upload_")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """One part of an upload, whose bytes are in place."""

    id: str
    upload_id: str
    bytes: int
    created_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """A model that a finished job made: `path` is its exported folder."""

    name: str
    path: str
    job_id: str
    created_at: int
