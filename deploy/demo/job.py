"""The job of the demo: sent by the unmodified `openai` client, watched live, its worker killed."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import APIStatusError, OpenAI

from headrace.service.cli.output import console
from headrace.service.cli.progress import Progress
from headrace.service.cli.watch import watch_job
from headrace.service.client import Client

from .memory import MemoryWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained on what. `kill_at` is the step after which the worker is killed."""

    model: str
    train: Path
    valid: Path
    max_steps: int
    kill_at: int
    batch_rows: int = 8
    learning_rate: float = 2e-4


@dataclass(kw_only=True)
class Ran:
    """How the job went, as the API and the kernel told it. Sizes are bytes."""

    job: dict[str, Any]
    steps: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    killed_pid: int = 0
    killed_at: int = 0
    workers: list[int] = field(default_factory=list)
    base_bytes: dict[int, int] = field(default_factory=dict)
    peak_bytes: dict[int, int] = field(default_factory=dict)


def run(url: str, recipe: Recipe) -> Ran:
    """Upload, create, watch, kill, and wait for the end; everything that was seen of it."""
    api = OpenAI(base_url=f"{url}/v1", api_key="none is needed on this machine")
    train = api.files.create(file=recipe.train, purpose="fine-tune")
    valid = api.files.create(file=recipe.valid, purpose="fine-tune")
    with Client(url) as client:
        killer = Killer(client, recipe.kill_at)
        killer.look()
        with MemoryWatch(lambda: killer.pid) as memory:
            try:
                job = api.fine_tuning.jobs.create(
                    model=recipe.model,
                    training_file=train.id,
                    validation_file=valid.id,
                    seed=0,
                    suffix="demo",
                    method={
                        "type": "supervised",
                        "supervised": {"hyperparameters": hyperparameters(recipe)},
                    },
                )
            except APIStatusError as refusal:
                raise SystemExit(f"the daemon refused the job: {refusal.message}") from refusal
            console().print(f"job {job.id} created through the openai client", markup=False)
            watch_job(client, job.id, on_event=killer.on_event)
    ran = Ran(job=api.fine_tuning.jobs.retrieve(job.id).to_dict())
    ran.killed_pid, ran.killed_at = killer.killed_pid, killer.killed_at
    ran.workers, ran.base_bytes = list(killer.base_bytes), killer.base_bytes
    ran.peak_bytes = memory.peaks
    for event in reversed(list(api.fine_tuning.jobs.list_events(job.id, limit=50))):
        collect(ran, event.to_dict())
    return ran


def hyperparameters(recipe: Recipe) -> Any:
    """The settings of the method; those after the first are Headrace's own."""
    return {
        "batch_size": recipe.batch_rows,
        "learning_rate": recipe.learning_rate,
        "max_steps": recipe.max_steps,
        "n_epochs": 50,
        "lr_scheduler": "linear",
        "warmup_ratio": 0.1,
    }


def collect(ran: Ran, event: dict[str, Any]) -> None:
    """Sort an event of the API into what the report wants."""
    kind, data = event.get("kind"), event.get("data") or {}
    if kind == "metrics":
        ran.steps.append(data)
    elif kind == "eval":
        ran.evaluations.append({**data, "step": event.get("step")})
    else:
        ran.messages.append(event["message"])


class Killer:
    """Knows the worker's process, and ends it with SIGKILL once, at the step it is told."""

    def __init__(self, client: Client, kill_at: int) -> None:
        self._client = client
        self._kill_at = kill_at
        self.pid: int | None = None
        self.killed_pid = 0
        self.killed_at = 0
        self.base_bytes: dict[int, int] = {}  # resident memory after import, before any job

    def look(self) -> None:
        """Ask the daemon which process is its worker, and note what it takes before any work."""
        worker = self._client.status()["worker"]
        self.pid = worker["pid"]
        if self.pid and worker["rss_at_start_bytes"]:
            self.base_bytes[self.pid] = worker["rss_at_start_bytes"]

    def on_event(self, progress: Progress) -> None:
        """Kill when the time has come; afterwards find the new worker."""
        if not self.killed_pid and progress.step >= self._kill_at:
            self.look()
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)
                self.killed_pid, self.killed_at = self.pid, progress.step
                text = f"worker {self.pid} killed with SIGKILL after step {progress.step}"
                console().print(text, markup=False)
        elif self.pid not in self.base_bytes or self.pid == self.killed_pid:
            self.look()
