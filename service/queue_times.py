"""When a job that waits will start and end, as far as can be told."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .jobs import JobRecord
from .journal import Journal

MAX_KNOWN = 50  # jobs that have run, looked at for the speed of those to come


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A job's place in the queue, from 1. Times are seconds since 1970, None where not known."""

    position: int
    estimated_start: int | None
    estimated_finish: int | None
    waits_for: str | None  # the job that is just before it


def look(journal: Journal) -> dict[str, Place]:
    """The place of every queued job at this moment, by id."""
    queue = journal.queue()
    if not queue:
        return {}
    running = journal.jobs(status=["running"], limit=1)
    known = journal.jobs(status=["running", "succeeded", "failed", "cancelled"], limit=MAX_KNOWN)
    return places(running[0] if running else None, queue, now=time.time(), known=known)


def places(
    running: JobRecord | None,
    queue: Sequence[JobRecord],
    *,
    now: float,
    known: Sequence[JobRecord] = (),
) -> dict[str, Place]:
    """The place of each job of the queue, by id.

    A time is known as long as the length of every job before it is. `known` are jobs that have
    run, newest first: their speed is expected of others where no plan says one.
    """
    free_at: float | None = now
    if running is not None:
        left = running.engine.get("eta_s")
        free_at = None if left is None else now + left
    before = running.id if running else None
    found = {}
    for position, job in enumerate(queue, start=1):
        seconds = seconds_left(job, known)
        end = None if free_at is None or seconds is None else free_at + seconds
        found[job.id] = Place(
            position=position,
            estimated_start=None if free_at is None else round(free_at),
            estimated_finish=None if end is None else round(end),
            waits_for=before,
        )
        free_at, before = end, job.id
    return found


def seconds_left(job: JobRecord, known: Sequence[JobRecord]) -> float | None:
    """How long the job still takes: its own step time, its plan's, or that of one like it."""
    plan = job.engine.get("plan") or {}
    total = job.engine.get("total_steps") or plan.get("total_steps")
    if total is None:
        return None
    steps = total - job.engine.get("step", 0)
    forecast = (plan.get("forecast") or {}).get("step_seconds") or {}
    own = job.engine.get("step_time_s") or forecast.get("expected")
    step = own or next(_alike(job.model, job.hyperparameters, known), None)
    return None if step is None else steps * step


def _alike(
    model: str, settings: Mapping[str, object], known: Sequence[JobRecord]
) -> Iterator[float]:
    """Step times of jobs of the same model, batch and length, as they ran."""
    for other in known:
        same = all(
            other.hyperparameters.get(name) == settings.get(name)
            for name in ("batch_size", "max_seq_len")
        )
        if other.model == model and same and other.engine.get("step_time_s"):
            yield float(other.engine["step_time_s"])
