"""What is known of a running job while its events arrive: a fold of the event stream. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..client import ServerEvent
from ..jobs import TERMINAL
from .output import human_seconds

ENDS = (*TERMINAL, "paused")  # watching ends here; a paused job goes on only when told to
QUIET = ("metrics", "commit", "result")  # shown by the bar, not as lines


@dataclass(kw_only=True)
class Progress:
    """The newest numbers of one job. `numbers` uses the names of the job's `engine` object."""

    job_id: str
    status: str = "queued"
    fine_tuned_model: str | None = None
    error: str | None = None
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be awaited."""
        return self.status in ENDS

    def apply(self, event: ServerEvent) -> str | None:
        """Take one event in; the line to show for it, None for one that only moves the bar."""
        data = event.data if isinstance(event.data, Mapping) else {}
        if event.event in ("snapshot", "reset", "done"):
            self.apply_job(data)
            return None
        if event.event == "tier":  # numbers of the moment, without the rates that belong to them
            return None
        inner = data.get("data") or {}
        if event.event == "status":
            self.status = inner.get("status", self.status)
        if event.event == "phase":
            before, self.numbers["phase"] = self.numbers.get("phase"), data.get("message")
            if before == self.numbers["phase"]:
                return None
        if event.event == "metrics":
            self._take_numbers(inner)
        message = data.get("message")
        return str(message) if message and event.event not in QUIET else None

    def apply_job(self, job: Mapping[str, Any]) -> None:
        """Take in a job object of the API."""
        self.status = job.get("status") or self.status
        self.fine_tuned_model = job.get("fine_tuned_model") or self.fine_tuned_model
        self.error = (job.get("error") or {}).get("message") or self.error
        self._take_numbers(job.get("engine") or {})

    def _take_numbers(self, values: Mapping[str, Any]) -> None:
        self.numbers |= {name: value for name, value in values.items() if value is not None}

    @property
    def step(self) -> int:
        """The newest finished step, 0 before the first."""
        return int(self.numbers.get("step") or 0)

    @property
    def total_steps(self) -> int:
        """Steps of the whole job, 0 while not known."""
        return int(self.numbers.get("total_steps") or 0)

    def describe(self) -> str:
        """Loss, rate, time left: the part of the bar that is text."""
        parts = [str(self.numbers.get("phase") or self.status)]
        if (loss := self.numbers.get("loss")) is not None:
            parts.append(f"loss {loss:.4f}")
        if rate := self.numbers.get("tokens_per_s"):
            parts.append(f"{rate:.0f} tok/s")
        if (left := self.numbers.get("eta_s")) and not self.ended:
            parts.append(f"{human_seconds(left)} left")
        return "  ".join(parts)

    def bottleneck(self) -> str:
        """What the step waits for, in a sentence; empty while not known."""
        return str(self.numbers.get("bottleneck") or "")

    def outcome(self) -> str:
        """How it ended, in a sentence."""
        if self.status == "succeeded":
            return f"{self.job_id} succeeded: {self.fine_tuned_model}"
        if self.status == "failed":
            return f"{self.job_id} failed: {self.error or 'no reason was recorded'}"
        return f"{self.job_id} is {self.status} at step {self.step}"
