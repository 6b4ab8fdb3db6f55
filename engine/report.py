"""What a run says of itself: events for people, step reports with measured bytes and seconds."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

EventType = Literal[
    "phase", "message", "plan", "metrics", "eval", "samples", "row_losses", "commit",
    "checkpoint", "export", "result",
]  # fmt: skip
Level = Literal["info", "warn", "error"]
StopReason = Literal["cancel", "pause", "shutdown"]
Outcome = Literal["succeeded", "cancelled", "paused", "interrupted"]
OUTCOME_OF: Mapping[StopReason, Outcome] = {
    "cancel": "cancelled",
    "pause": "paused",
    "shutdown": "interrupted",
}

LINKS = ("nvme_read", "nvme_write", "h2d", "d2h")
DRIVE_LINKS = LINKS[:2]
FEWEST_ROWS = 16  # of an epoch, of which any can be said to stand out by its loss
ROW_LOSS_KINDS: Mapping[str, str] = {  # of rows whose loss stands out, in words
    "above": "far above",
    "below": "far below",
    "not_finite": "no number",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One thing that happened in a run. `step` is the optimizer step it belongs to, from 1.

    `durable` events must be on disk before the run goes on (commits, checkpoints, the result).
    """

    type: EventType
    message: str
    level: Level = "info"
    step: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    durable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that have crossed each link, and each volume by link, since some moment."""

    links: Mapping[str, int]
    volumes: Mapping[str, Mapping[str, int]]


Look = Callable[[], Traffic]
Watch = Callable[[Look | None], None]  # is given a way to look while there is something to see
Emit = Callable[[RunEvent], None]
Poll = Callable[[], StopReason | None]


class Interrupted(Exception):
    """The run was asked to stop before its first step; what it had found until then is kept."""

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason: StopReason = reason


def go_on(poll: Poll) -> None:
    """Interrupted when `poll` asks to stop."""
    if reason := poll():
        raise Interrupted(reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """Traffic over one tier edge: payload and padding in bytes, calls, and seconds it was busy.

    Beside what was measured, the payload and the seconds that the plan has for this step.
    """

    payload_bytes: int = 0
    padding_bytes: int = 0
    operations: int = 0
    busy_seconds: float = 0.0
    planned_bytes: int = 0
    planned_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One optimizer step, as measured. Times are seconds; `loss` is the mean per trained token, of
    preferences per preference.

    `router_aux_loss` is of a mixture whose experts are balanced: what is minimised is `loss` and
    router_aux_loss_coef times it. Rewards are of preferences (Totals.rewards).
    """

    step: int
    total_steps: int
    epoch: float
    loss: float
    grad_norm: float
    clip_factor: float
    learning_rate: float
    skipped: bool  # the gradient was not finite: nothing was updated
    num_tokens: int  # tokens of the step's rows, without padding
    num_computed_tokens: int  # what went through the layers: those and the padding
    num_trained_tokens: int  # tokens that the loss counts
    token_accuracy: float
    step_seconds: float
    planned_seconds: float  # of the step without its commit, for these tokens
    compute_seconds: float  # the compute stage at work, part of step_seconds
    planned_compute_seconds: float
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float
    commit_seconds: float  # of this step's commit, part of step_seconds; 0 without one
    stall_read_seconds: float  # compute waited for a layer that was being read
    stall_write_seconds: float  # compute waited for one that had no slot yet: writes were behind
    links: dict[str, LinkReport]
    rss_bytes: int
    device_peak_bytes: int
    router_aux_loss: float | None = None
    reward_chosen: float | None = None
    reward_rejected: float | None = None
    reward_margin: float | None = None
    reward_accuracy: float | None = None  # share of chosen answers with the greater reward

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values; rewards only where there are any."""
        fields = asdict(self).items()
        return {k: v for k, v in fields if v is not None or not k.startswith("reward")}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended. `export_dir` is set when it succeeded."""

    outcome: Outcome
    step: int
    total_steps: int
    trained_tokens: int
    final_loss: float | None
    final_eval_loss: float | None
    export_dir: str | None

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        return asdict(self)


def metrics_event(report: Mapping[str, Any], total_steps: int) -> RunEvent:
    """A step's report (`StepReport.to_dict`) as the run tells it."""
    return RunEvent(
        type="metrics",
        message=f"Step {report['step']}/{total_steps}: training loss={report['loss']:.4f}",
        step=report["step"],
        data=dict(report),
        durable=True,
    )
