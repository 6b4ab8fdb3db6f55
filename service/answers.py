"""The shapes of answers, for the description of the API; no answer is checked against them.

A test holds real answers against them. What a client need not know of is left out; objects may
have more fields than are named here.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from .hyperparameter_fields import Hyperparameters
from .jobs import Level, Status
from .schemas import Method

Seconds = Annotated[int, Field(description="Seconds since 1970, UTC.")]
Numbers = list[float | None]


class Page(BaseModel):
    """A page of a list. The next one begins `after` the `last_id`, while `has_more`."""

    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class JobError(BaseModel):
    """Why a job failed; `param` names the field of the request at fault."""

    code: str | None
    message: str
    param: str | None


class Engine(BaseModel):
    """What only Headrace tells of a job. Fields are there once they are known."""

    phase: str | None = Field(description="What it does now, such as tokenizing or training.")
    started_at: int | None
    priority: int
    queue_position: int = Field(0, description="Of a queued job, from 1.")
    waits_for: str | None = Field(None, description="The job before it.")
    estimated_start: int | None = None
    estimated_finish: int | None = None
    step: int = 0
    total_steps: int = 0
    epoch: float = 0
    loss: float | None = None
    tokens_seen: int = 0
    tokens_per_s: float = 0
    step_time_s: float = 0
    eta_s: float | None = None
    bottleneck: str = ""
    reward_margin: float | None = Field(None, description="Of preferences, like the next.")
    reward_accuracy: float | None = None
    committed_step: int | None = Field(None, description="The last step that is safe.")
    plan: dict[str, Any] = Field(default_factory=dict, description="Left out in lists.")
    settings: dict[str, Any] = Field(default_factory=dict, description='Every "auto" settled.')
    warnings: list[str] = []


class Job(BaseModel):
    """A fine-tuning job, in the shape of the OpenAI API with `engine` beside it."""

    id: str
    object: Literal["fine_tuning.job"]
    created_at: Seconds
    finished_at: int | None
    estimated_finish: int | None
    model: str
    fine_tuned_model: str | None
    organization_id: str
    status: Status
    training_file: str
    validation_file: str | None
    result_files: list[str]
    hyperparameters: Hyperparameters = Field(
        description="Those of a supervised job, settled; those of others stand in method alone."
    )
    method: Method = Field(description='Its settings with every "auto" settled that can be by now.')
    seed: int
    trained_tokens: int | None
    error: JobError | None
    integrations: list[Any]
    metadata: dict[str, str] | None
    user_provided_suffix: str | None
    engine: Engine


class JobPage(Page):
    """Jobs, newest first."""

    data: list[Job]


class Event(BaseModel):
    """One thing that happened to a job. `seq` is the number that a stream resumes after."""

    id: str
    object: Literal["fine_tuning.job.event"]
    created_at: Seconds
    level: Level
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, Any] | None
    kind: str
    seq: int
    step: int | None


class EventPage(Page):
    """Events, newest first."""

    data: list[Event]


class Checkpoint(BaseModel):
    """A listed checkpoint; its name or id can be the `model` of another job."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"]
    created_at: Seconds
    step_number: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: dict[str, float | None]


class CheckpointPage(Page):
    """Checkpoints, newest first."""

    data: list[Checkpoint]


class Plan(BaseModel):
    """What a job would be and cost."""

    object: Literal["fine_tuning.plan"]
    model: str
    method: Method
    hyperparameters: Hyperparameters
    seed: int
    plan: dict[str, Any]
    settings: dict[str, Any]
    warnings: list[str]


class Freed(BaseModel):
    """Whether there was state to remove."""

    id: str
    object: Literal["fine_tuning.job.state"]
    freed: bool


class Series(BaseModel):
    """Numbers of a job as columns of equal length: those of steps, those of evaluations."""

    object: Literal["fine_tuning.job.series"]
    last_seq: int
    first: int
    last: int
    every: int
    steps: dict[str, Numbers]
    evaluations: dict[str, Numbers]
    newest: dict[str, Any] | None


class Timeline(BaseModel):
    """The newest step lane by lane."""

    object: Literal["fine_tuning.job.timeline"]
    step: int | None
    seconds: float | None
    lanes: dict[str, Any]


class File(BaseModel):
    """An uploaded file or a result file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: Seconds
    expires_at: int | None
    filename: str
    purpose: str
    status: str
    status_details: str | None
    sha256: str


class FilePage(Page):
    """Files in the order that was asked for."""

    data: list[File]


class Deleted(BaseModel):
    """What was removed."""

    id: str
    object: Literal["file", "model"]
    deleted: bool


class Upload(BaseModel):
    """A large file in parts, and the file once it is complete."""

    id: str
    object: Literal["upload"]
    bytes: int
    created_at: Seconds
    expires_at: Seconds
    filename: str
    purpose: str
    status: Literal["pending", "completed", "cancelled", "expired"]
    file: File | None


class Part(BaseModel):
    """One part of an upload, in place."""

    id: str
    object: Literal["upload.part"]
    bytes: int
    created_at: Seconds
    upload_id: str


class Model(BaseModel):
    """A model that a job can start from; `path` is on the daemon's machine."""

    id: str
    object: Literal["model"]
    created: Seconds
    owned_by: str
    path: str


class ModelList(BaseModel):
    """Models made by jobs, newest first, then base models by name.

    With `contains`, the one of that name first, then those whose name begins so. `has_more`:
    `limit` left some out.
    """

    object: Literal["list"]
    data: list[Model]
    has_more: bool


class Health(BaseModel):
    """In order."""

    status: Literal["ok"]


class BoxStatus(BaseModel):
    """The daemon and its box: worker, jobs, queue, drives, device, budgets."""

    object: Literal["status"]
    version: str
    uptime_seconds: int
    not_ready: list[str]
    jobs: dict[str, int]
    queue: list[dict[str, Any]]
    running: Job | None
    telemetry: dict[str, Any] | None
    viewers: int
    worker: dict[str, Any]
