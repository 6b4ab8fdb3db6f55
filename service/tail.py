"""Takes a job's own log into the journal: every event once, in order, and what follows from it.

The number of an event is kept with it, so a tail that starts again, in this process or the next,
goes on where the last one stopped.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy.exc import OperationalError

from .event_log import EventReader, LoggedEvent
from .full_disk import is_full
from .jobs import JobRecord, Level, Status
from .journal import Journal
from .rates import Rates, public_metrics
from .results import (
    EVAL_NAMES,
    checkpoint_metrics,
    checkpoint_name,
    error_code,
    model_name,
    write_result_file,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

TAIL_SECONDS = 0.2
RETRY_SECONDS = 1.0

ENDS: dict[str, Status] = {
    "succeeded": "succeeded",
    "failed": "failed",
    "cancelled": "cancelled",
    "paused": "paused",
    "interrupted": "queued",
}


class Tail:
    """Follows one job's `events.jsonl`. Blocking; to be called from one thread at a time."""

    def __init__(self, journal: Journal, job_id: str, *, job_dir: Path, files_dir: Path) -> None:
        self._journal = journal
        self._job_id = job_id
        self._log = job_dir / "events.jsonl"
        self._files_dir = files_dir
        self._reader = EventReader(self._log)
        self._rates = Rates()
        self._last: LoggedEvent | None = None
        self._phase: str | None = None
        self._shown: dict[str, Callable[[LoggedEvent, Mapping[str, Any]], dict[str, Any]]] = {
            "metrics": self._shown_of_step,
            "eval": lambda event, _: _shown_of_eval(event),
            "plan": lambda event, _: {"plan": event.data},
            "export": lambda event, _: {"exports": event.data.get("exports", [])},
            "commit": lambda event, _: {"committed_step": event.step},
            "result": lambda event, _: {"eta_s": None},
        }

    def poll(self) -> int:
        """Take in what the log has new; how many events that was."""
        count = 0
        while True:
            before = self._reader.offset
            events = self._reader.read()
            if not events:
                return count
            try:
                for event in events:
                    count += self._take(event)
            except BaseException:
                self._reader.offset = before  # those that were taken are known by their numbers
                raise

    def settle(self) -> None:
        """Take in all there is, and act on an end that was taken in but not acted on.

        For a job that is marked as running while no process runs it. An API can die, or its disk
        be full, between the two.
        """
        self.poll()
        if self._last and self._last.type == "result" and self._is_unheeded(self._last):
            self._take_result(self._last)

    def _is_unheeded(self, end: LoggedEvent) -> bool:
        """Whether the job was set running before that end came, not again after it."""
        if self._job().status != "running":
            return False
        (move,) = self._journal.events(self._job_id, type="status", limit=1)
        ends = self._journal.events(self._job_id, type="result", limit=1)
        return bool(ends) and ends[0].worker_seq == end.seq and ends[0].seq > move.seq

    def _take(self, event: LoggedEvent) -> bool:
        self._last = event
        if event.type == "checkpoint":
            self._take_checkpoint(event)  # before the event: harmless when done twice
        level, message = event.level, event.message
        if _is_failure(event):  # the move that follows tells it, to everyone and once
            level, message = "info", "the run ended with an error"
        phase = event.message if event.type == "phase" else None
        shown = self._shown.get(event.type)
        added = self._journal.add_event(
            self._job_id,
            type=event.type,
            level=cast(Level, level),
            message=message,
            step=event.step,
            data=self._public_data(event),
            worker_seq=event.seq,
            created_at=int(event.at),
            engine=None if shown is None else partial(shown, event),
            phase=None if phase == self._phase else phase,  # a long one says how far it is
        )
        if added and phase:
            self._phase = phase
        if added and event.type == "result":
            self._take_result(event)
        return added is not None

    def _public_data(self, event: LoggedEvent) -> dict[str, Any]:
        if event.type == "metrics":
            return public_metrics(event.data, self._rates.add(event.data))
        if event.type == "eval":
            named = {EVAL_NAMES.get(name, name): value for name, value in event.data.items()}
            return {"step": event.step, **named, "full_valid_loss": event.data.get("eval_loss")}
        return event.data

    def _shown_of_step(self, event: LoggedEvent, engine: Mapping[str, Any]) -> dict[str, Any]:
        if (event.step or 0) <= engine.get("step", 0):  # told again, or done again after a crash
            return self._rates.newest
        links = {
            name: engine.get("link_bytes", {}).get(name, 0) + link["payload_bytes"]
            for name, link in event.data["links"].items()
        }
        seen = engine.get("tokens_seen", 0) + event.data["num_tokens"]
        return {"link_bytes": links, "tokens_seen": seen, **self._rates.newest}

    def _take_checkpoint(self, event: LoggedEvent) -> None:
        step = event.step or 0
        self._journal.add_checkpoint(
            self._job_id,
            step=step,
            name=checkpoint_name(self._job(), step),
            path=event.data["path"],
            metrics=checkpoint_metrics(event),
        )
        self._forget_dropped_checkpoints()

    def _forget_dropped_checkpoints(self) -> None:
        """The run keeps the newest ones only; what it has removed is no longer listed."""
        for held in self._journal.checkpoints(self._job_id, limit=10_000):
            if not Path(held.path).exists():
                self._journal.remove_checkpoint(held.id)

    def _take_result(self, event: LoggedEvent) -> None:
        job = self._job()
        if job.is_terminal:
            return
        status = ENDS[event.data["outcome"]]
        fields: dict[str, Any] = {"phase": None}
        if trained := event.data.get("trained_tokens"):
            fields["trained_tokens"] = trained
        if status == "succeeded":
            fields |= self._keep_result(job, event)
        if status == "failed":
            fields["error"] = failure(event)
        if status in ("succeeded", "failed", "cancelled"):
            self._forget_dropped_checkpoints()
        told = event.message if status == "failed" else None  # the event itself told the others
        self._journal.move(self._job_id, status, message=told, **fields)

    def _keep_result(self, job: JobRecord, event: LoggedEvent) -> dict[str, Any]:
        """Record the model and the table of steps; the fields that name them."""
        self._files_dir.mkdir(parents=True, exist_ok=True)
        record = write_result_file(self._job_id, self._log, self._files_dir)
        if self._journal.file(record.id) is None:
            self._journal.add_file(record)
        name = model_name(job)
        self._journal.add_model(name=name, path=event.data["export_dir"], job_id=self._job_id)
        return {"fine_tuned_model": name, "result_files": [record.id]}

    def _job(self) -> JobRecord:
        job = self._journal.job(self._job_id)
        assert job, self._job_id
        return job


async def follow(tail: Tail, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` and take in what its process logs meanwhile, and all of it before returning.

    While the journal cannot be written for want of room, the work goes on and its log keeps
    everything. Other errors are raised, and the work is no longer awaited.
    """
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=TAIL_SECONDS)
            await _attempt(tail.poll)
        while not await _attempt(tail.settle):
            await asyncio.sleep(RETRY_SECONDS)
        return await task
    finally:
        task.cancel()


async def _attempt(take: Callable[[], object]) -> bool:
    try:
        await asyncio.to_thread(take)
    except (OSError, OperationalError) as error:
        if isinstance(error, OSError) and not is_full(error):
            raise
        log.warning("cannot take in a job's events yet: %s", error)
        return False
    return True


def _shown_of_eval(event: LoggedEvent) -> dict[str, Any]:
    rewards = {
        EVAL_NAMES[name]: value
        for name, value in event.data.items()
        if name.startswith("eval_reward_")
    }
    loss, accuracy = (event.data.get(name) for name in ("eval_loss", "eval_token_accuracy"))
    return {"valid_loss": loss, "valid_mean_token_accuracy": accuracy, **rewards}


def _is_failure(event: LoggedEvent) -> bool:
    return event.type == "result" and event.data.get("outcome") == "failed"


def failure(event: LoggedEvent) -> dict[str, Any]:
    """The job's error object for a failed run: the kind of the exception becomes the code."""
    error = event.data["error"]
    return {"code": error_code(error["type"]), "message": error["message"], "param": None}
