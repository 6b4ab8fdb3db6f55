"""The journal's events: a durable, numbered story of every job."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, Literal, Protocol

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.engine import RowMapping

from . import tables
from .database import Database
from .jobs import EventRecord, Level, UnknownId

ONCE_A_STEP = frozenset(
    {"metrics", "eval", "samples", "row_losses", "commit", "checkpoint", "export"}
)
MAX_DIGITS = 18  # of a number that SQLite can hold

EngineValues = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_FIELDS = [field.name for field in fields(EventRecord)]
_STORED = [name for name in _FIELDS if name != "id"]


class Listener(Protocol):
    """Who is told of every event; must not block."""

    def publish(self, event: EventRecord) -> None:
        """Take an event that is committed."""


class EventTable:
    """The part of the journal that holds events."""

    _database: Database
    _listener: Listener

    def add_event(
        self,
        job_id: str,
        *,
        type: str,
        level: Level,
        message: str,
        step: int | None = None,
        data: dict[str, Any] | None = None,
        worker_seq: int | None = None,
        created_at: int | None = None,
        engine: EngineValues | None = None,
        phase: str | None = None,
    ) -> EventRecord | None:
        """Add an event; None when one with that `worker_seq`, or a later one, is there already.

        What the job shows because of it is one transaction with it, since nobody would do it later:
        `engine` gives values to merge into the job's engine object, which it gets, and `phase` is
        the job's new phase.

        An event of a step replaces the one of its type that is shown for the same step:
        steps, and what follows from them, are done again after a crash. Events of the worker can
        be had again from its log, so they are written relaxed. KeyError for an unknown job.
        """

        def change(c: Connection) -> EventRecord | None:
            if worker_seq is not None:
                if worker_seq <= _job_number(c, job_id, "worker_seq"):
                    return None
                _set_job_number(c, job_id, "worker_seq", worker_seq)
            if type in ONCE_A_STEP and step is not None:
                _drop_same(c, job_id, type, step)
            _show(c, job_id, engine, phase)
            return insert_event(
                c,
                job_id,
                type=type,
                level=level,
                message=message,
                step=step,
                data=data,
                worker_seq=worker_seq,
                created_at=created_at,
            )

        def publish(event: EventRecord | None) -> None:
            if event:
                self._listener.publish(event)

        return self._database.write(change, relaxed=worker_seq is not None, then=publish)

    def last_worker_seq(self, job_id: str) -> int:
        """The newest `worker_seq` taken in, 0 before the first. KeyError for an unknown job."""
        return self._database.read(lambda c: _job_number(c, job_id, "worker_seq"))

    def last_event_seq(self, job_id: str) -> int:
        """The newest `seq` given out, 0 before the first. KeyError for an unknown job."""
        return self._database.read(lambda c: _job_number(c, job_id, "event_seq"))

    def events(
        self,
        job_id: str,
        *,
        after_id: str | None = None,
        limit: int = 20,
        type: str | None = None,
    ) -> list[EventRecord]:
        """Events, newest first, older than `after_id`; UnknownId when that is not of this job."""
        events = tables.events
        question = select(events).where(events.c.job_id == job_id)
        if type is not None:
            question = question.where(events.c.type == type)
        if after_id is not None:
            question = question.where(events.c.seq < seq_of_event(job_id, after_id))
        return [
            event_of(row)
            for row in self._database.all(question.order_by(events.c.seq.desc()).limit(limit))
        ]

    def events_since(self, job_id: str, after_seq: int, *, limit: int = 500) -> list[EventRecord]:
        """Events with a `seq` above `after_seq`, oldest first: what a viewer has missed."""
        events = tables.events
        missed = select(events).where(events.c.job_id == job_id, events.c.seq > after_seq)
        return [
            event_of(row) for row in self._database.all(missed.order_by(events.c.seq).limit(limit))
        ]


def event_id(job_id: str, seq: int) -> str:
    """The id of a job's event; `seq_of_event` reads it back."""
    return f"ftevent-{job_id.removeprefix('ftjob-')}-{seq}"


def seq_of_event(job_id: str, name: str) -> int:
    """The `seq` in an event's id. UnknownId when it is not an id of this job's events."""
    seq = name.removeprefix(event_id(job_id, 0)[:-1])
    if not (seq.isdecimal() and len(seq) <= MAX_DIGITS and event_id(job_id, int(seq)) == name):
        raise UnknownId(name)
    return int(seq)


def insert_event(
    c: Connection,
    job_id: str,
    *,
    type: str,
    level: Level,
    message: str,
    step: int | None = None,
    data: dict[str, Any] | None = None,
    worker_seq: int | None = None,
    created_at: int | None = None,
) -> EventRecord:
    """Number an event and write it, within the caller's transaction. KeyError: unknown job."""
    seq = _job_number(c, job_id, "event_seq") + 1
    _set_job_number(c, job_id, "event_seq", seq)
    event = EventRecord(
        id=event_id(job_id, seq),
        job_id=job_id,
        seq=seq,
        created_at=int(time.time()) if created_at is None else created_at,
        level=level,
        type=type,
        message=message,
        step=step,
        data=data,
        worker_seq=worker_seq,
    )
    values = asdict(event)
    c.execute(insert(tables.events).values({name: values[name] for name in _STORED}))
    return event


def _show(c: Connection, job_id: str, engine: EngineValues | None, phase: str | None) -> None:
    job = tables.jobs.c.id == job_id
    if engine is not None:
        shown = c.execute(select(tables.jobs.c.engine).where(job)).scalar_one()
        c.execute(update(tables.jobs).where(job).values(engine={**shown, **engine(shown)}))
    if phase is not None:
        c.execute(update(tables.jobs).where(job).values(phase=phase))


_Number = Literal["event_seq", "worker_seq"]


def _job_number(c: Connection, job_id: str, name: _Number) -> int:
    jobs = tables.jobs
    found = c.execute(select(jobs.c[name]).where(jobs.c.id == job_id)).scalar()
    if found is None:
        raise KeyError(job_id)
    return int(found)


def _set_job_number(c: Connection, job_id: str, name: _Number, value: int) -> None:
    c.execute(update(tables.jobs).where(tables.jobs.c.id == job_id).values({name: value}))


def _drop_same(c: Connection, job_id: str, type: str, step: int) -> None:
    events = tables.events
    same = (events.c.job_id == job_id, events.c.type == type, events.c.step == step)
    c.execute(delete(events).where(*same))


def event_of(row: RowMapping) -> EventRecord:
    """A row of the table as a record."""
    name = event_id(row["job_id"], row["seq"])
    return EventRecord(id=name, **{stored: row[stored] for stored in _STORED})
