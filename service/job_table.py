"""The journal's jobs: adding, finding, moving. A move and its event are one transaction."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update
from sqlalchemy.engine import RowMapping

from . import tables
from .database import Database
from .event_table import Listener, insert_event
from .jobs import TERMINAL, EventRecord, JobRecord, Status, UnknownId, check_move

REPLAY_SECONDS = 600  # how long a create request may come again and still mean the first job

_FIELDS = [field.name for field in fields(JobRecord)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What makes a create request recognisable when it comes again. Both are hex digests."""

    key: str
    body_hash: str


class JobTable:
    """The part of the journal that holds jobs."""

    _database: Database
    _listener: Listener

    def check_writable(self) -> None:
        """Raise what the database raises when it cannot take a write."""
        self._database.write(lambda c: c.execute(delete(tables.requests).where(_too_old())))

    def add_job(
        self, record: JobRecord, *, replay: Replay | None = None, needs: Collection[str] = ()
    ) -> JobRecord:
        """Add a job, with its first event, and remember the request that made it.

        UnknownId when a file or a model that it `needs` was removed since it was looked at.
        """

        def change(c: Connection) -> EventRecord:
            known = (tables.files.c.id, tables.models.c.name)
            for name in needs:
                if not any(c.scalar(select(one).where(one == name)) for one in known):
                    raise UnknownId(name)
            c.execute(insert(tables.jobs).values(**asdict(record), event_seq=0, worker_seq=0))
            if replay:
                c.execute(delete(tables.requests).where(tables.requests.c.key == replay.key))
                made = {"job_id": record.id, "created_at": int(time.time())}
                c.execute(insert(tables.requests).values(**asdict(replay), **made))
            data = {"status": record.status, "previous": None}
            return insert_event(
                c, record.id, type="status", level="info", message="Created the job.", data=data
            )

        self._database.write(change, then=self._listener.publish)
        return record

    def replayed(self, key: str) -> tuple[JobRecord, str] | None:
        """The job that a request of that key made lately, and the hash of its body."""
        requests = tables.requests
        question = select(requests).where(requests.c.key == key, ~_too_old())
        row = self._database.first(question)
        job = self.job(row["job_id"]) if row else None
        return (job, str(row["body_hash"])) if row and job else None

    def job(self, job_id: str) -> JobRecord | None:
        """The job of that id."""
        row = self._database.first(select(tables.jobs).where(tables.jobs.c.id == job_id))
        return _job(row) if row else None

    def jobs(
        self,
        *,
        after: str | None = None,
        limit: int = 20,
        metadata: Mapping[str, str] | None = None,
        without_metadata: bool = False,
        status: Sequence[Status] | None = None,
    ) -> list[JobRecord]:
        """Jobs, newest first. `metadata` pairs must all be there. UnknownId: no such `after`."""
        jobs = tables.jobs
        question = select(jobs).order_by(jobs.c.seq.desc()).limit(limit)
        if after is not None:
            question = question.where(jobs.c.seq < self._database.seq_of(jobs, after))
        if status is not None:
            question = question.where(jobs.c.status.in_(status))
        if without_metadata:
            question = question.where(jobs.c.metadata.is_(None))
        for key, value in (metadata or {}).items():
            pair = func.json_each(jobs.c.metadata).table_valued("key", "value")
            found = select(pair.c.key).where(pair.c.key == key, pair.c.value == value)
            question = question.where(found.exists())
        return [_job(row) for row in self._database.all(question)]

    def job_counts(self) -> dict[str, int]:
        """How many jobs have each status; statuses without a job are left out."""
        status = tables.jobs.c.status
        question = select(status, func.count()).group_by(status)
        return {row[0]: row[1] for row in self._database.read(lambda c: c.execute(question).all())}

    def move(
        self, job_id: str, status: Status, *, message: str | None = None, **changed: Any
    ) -> JobRecord:
        """Change a job's status and `changed` fields, with an event in the same transaction.

        Sets `started_at` when it first runs and `finished_at` when it ends. Raises IllegalMove, and
        KeyError for an unknown job.
        """

        def change(c: Connection) -> tuple[JobRecord, EventRecord]:
            before = _get_job(c, job_id)
            check_move(job_id, before.status, status)
            values = _check_fields(changed) | {"status": status} | _times(before, status)
            c.execute(update(tables.jobs).where(tables.jobs.c.id == job_id).values(**values))
            after = _get_job(c, job_id)
            event = insert_event(
                c,
                job_id,
                type="status",
                level="error" if status == "failed" else "info",
                message=message or _describe(after),
                data={"status": status, "previous": before.status},
            )
            return after, event

        def publish(changed: tuple[JobRecord, EventRecord]) -> None:
            self._listener.publish(changed[1])

        ends = status in ("cancelled", "failed")  # which gives room back
        return self._database.write(change, frees=ends, then=publish)[0]

    def set_fields(self, job_id: str, **changed: Any) -> JobRecord:
        """Change fields other than `id` and `status`. KeyError for an unknown job."""

        def change(c: Connection) -> JobRecord:
            values = _check_fields(changed)
            c.execute(update(tables.jobs).where(tables.jobs.c.id == job_id).values(**values))
            return _get_job(c, job_id)

        return self._database.write(change)

    def next_queued(self) -> JobRecord | None:
        """The job to run next: the highest priority, then the oldest."""
        return next(iter(self.queue()), None)

    def queue(self) -> list[JobRecord]:
        """The queued jobs in the order in which they will run."""
        jobs = tables.jobs
        queued = select(jobs).where(jobs.c.status == "queued")
        return [
            _job(row)
            for row in self._database.all(queued.order_by(jobs.c.priority.desc(), jobs.c.seq))
        ]

    def unfinished(self) -> list[JobRecord]:
        """Jobs that were running or validating, oldest first: what a restart must take up."""
        jobs = tables.jobs
        busy = jobs.c.status.in_(("running", "validating_files"))
        return [
            _job(row) for row in self._database.all(select(jobs).where(busy).order_by(jobs.c.seq))
        ]

    def jobs_of_state(self, name: str) -> list[JobRecord]:
        """The jobs that a training state has belonged to, the one it belongs to now first."""
        jobs = tables.jobs
        theirs = (jobs.c.id == name) | (jobs.c.engine["state_name"].as_string() == name)
        question = select(jobs).where(theirs).order_by(jobs.c.seq.desc())
        return [_job(row) for row in self._database.all(question)]


def _get_job(c: Connection, job_id: str) -> JobRecord:
    row = c.execute(select(tables.jobs).where(tables.jobs.c.id == job_id)).mappings().first()
    if row is None:
        raise KeyError(job_id)
    return _job(row)


def _job(row: RowMapping) -> JobRecord:
    return JobRecord(**{name: row[name] for name in _FIELDS})


def _check_fields(changed: Mapping[str, Any]) -> dict[str, Any]:
    allowed = set(_FIELDS) - {"id", "status"}
    assert changed.keys() <= allowed, f"no such fields of a job: {changed.keys() - allowed}"
    return dict(changed)


def _times(before: JobRecord, status: Status) -> dict[str, int]:
    now = int(time.time())
    if status == "running" and before.started_at is None:
        return {"started_at": now}
    return {"finished_at": now} if status in TERMINAL else {}


def _describe(job: JobRecord) -> str:
    if job.status == "failed" and job.error:
        return f"The job failed: {job.error.get('message')}"
    if job.status == "succeeded" and job.fine_tuned_model:
        return f"The job succeeded; the new model is {job.fine_tuned_model}."
    return f"The job is {job.status.replace('_', ' ')}."


def _too_old() -> ColumnElement[bool]:
    return tables.requests.c.created_at < int(time.time()) - REPLAY_SECONDS
