"""The journal's things on disk: checkpoints, files and the models that jobs made."""

import time
from dataclasses import asdict
from functools import partial
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Table,
    and_,
    delete,
    func,
    insert,
    select,
)

from . import tables
from .database import Database, without_seq
from .jobs import (
    TERMINAL,
    CheckpointRecord,
    FileRecord,
    InUse,
    ModelRecord,
    UnknownId,
    new_id,
)


class Catalog:
    """The part of the journal that holds checkpoints, files and models."""

    _database: Database

    def add_checkpoint(
        self, job_id: str, *, step: int, name: str, path: str, metrics: dict[str, Any]
    ) -> CheckpointRecord:
        """List a checkpoint; one of the same step, made again after a crash, keeps its id."""
        held = tables.checkpoints

        def change(c: Connection) -> CheckpointRecord:
            where = and_(held.c.job_id == job_id, held.c.step == step)
            known = c.execute(select(held.c.id).where(where)).scalar()
            c.execute(delete(held).where(where))
            record = CheckpointRecord(
                id=known or new_id("ftckpt_"),
                job_id=job_id,
                step=step,
                name=name,
                path=path,
                metrics=metrics,
                created_at=int(time.time()),
            )
            c.execute(insert(held).values(**asdict(record)))
            return record

        return self._database.write(change)

    def checkpoints(
        self, job_id: str, *, after: str | None = None, limit: int = 10
    ) -> list[CheckpointRecord]:
        """Checkpoints, newest step first, older than the one of id `after` (UnknownId)."""
        held = tables.checkpoints
        question = select(held).where(held.c.job_id == job_id).order_by(held.c.step.desc())
        if after is not None:
            mark = self._database.first(
                select(held.c.step).where(held.c.id == after, held.c.job_id == job_id)
            )
            if not mark:
                raise UnknownId(after)
            question = question.where(held.c.step < mark["step"])
        return [
            CheckpointRecord(**without_seq(row))
            for row in self._database.all(question.limit(limit))
        ]

    def checkpoint(self, id_or_name: str) -> CheckpointRecord | None:
        """The checkpoint of that id or model name."""
        held = tables.checkpoints
        either = (held.c.id == id_or_name) | (held.c.name == id_or_name)
        row = self._database.first(select(held).where(either))
        return CheckpointRecord(**without_seq(row)) if row else None

    def remove_checkpoint(self, checkpoint_id: str) -> bool:
        """Take a checkpoint off the list; whether it was there. Its folder is the caller's."""
        return self._database.remove(tables.checkpoints, tables.checkpoints.c.id == checkpoint_id)

    def add_file(self, record: FileRecord) -> FileRecord:
        """Record a file whose bytes are already in place."""
        self._database.write(lambda c: c.execute(insert(tables.files).values(**asdict(record))))
        return record

    def file(self, file_id: str) -> FileRecord | None:
        """The file of that id."""
        row = self._database.first(select(tables.files).where(tables.files.c.id == file_id))
        return FileRecord(**without_seq(row)) if row else None

    def files(
        self,
        *,
        after: str | None = None,
        limit: int = 10_000,
        purpose: str | None = None,
        contains: str | None = None,
        newest_first: bool = True,
    ) -> list[FileRecord]:
        """Files in order of arrival, after the one of id `after` (UnknownId).

        With `contains`, those alone whose name contains it, small and capital letters alike, and
        the one of that id.
        """
        files = tables.files
        question = select(files).order_by(files.c.seq.desc() if newest_first else files.c.seq)
        if purpose is not None:
            question = question.where(files.c.purpose == purpose)
        if contains is not None:
            named = _holds(files.c.filename, contains)
            question = question.where(named | (files.c.id == contains))
        if after is not None:
            mark = self._database.seq_of(files, after)
            question = question.where(files.c.seq < mark if newest_first else files.c.seq > mark)
        return [FileRecord(**without_seq(row)) for row in self._database.all(question.limit(limit))]

    def expired_files(self, now: int) -> list[FileRecord]:
        """Files whose time is over."""
        over = select(tables.files).where(tables.files.c.expires_at <= now)
        return [FileRecord(**without_seq(row)) for row in self._database.all(over)]

    def remove_file(self, file_id: str) -> bool:
        """Forget a file; whether it was there. Its bytes are the caller's. InUse."""
        return self._remove_unused(tables.files, tables.files.c.id, file_id)

    def add_model(self, *, name: str, path: str, job_id: str) -> ModelRecord:
        """Record the model that a job made; the same name again replaces it."""
        record = ModelRecord(name=name, path=path, job_id=job_id, created_at=int(time.time()))

        def change(c: Connection) -> None:
            c.execute(delete(tables.models).where(tables.models.c.name == name))
            c.execute(insert(tables.models).values(**asdict(record)))

        self._database.write(change)
        return record

    def models(self, *, contains: str | None = None, limit: int | None = None) -> list[ModelRecord]:
        """Models that jobs made, newest first, `limit` of them at most.

        With `contains`, those alone whose name contains it, small and capital letters alike: the
        one of that name first, then those that begin with it.
        """
        models = tables.models
        question = select(models)
        if contains is not None:
            name, wanted = func.casefold(models.c.name), contains.casefold()
            question = question.where(_holds(models.c.name, contains))
            question = question.order_by(name != wanted, func.instr(name, wanted) != 1)
        question = question.order_by(models.c.seq.desc()).limit(limit)
        return [ModelRecord(**without_seq(row)) for row in self._database.all(question)]

    def model(self, name: str) -> ModelRecord | None:
        """The model of that name, made by a job."""
        row = self._database.first(select(tables.models).where(tables.models.c.name == name))
        return ModelRecord(**without_seq(row)) if row else None

    def remove_model(self, name: str) -> bool:
        """Forget a model; whether it was there. Its folder is the caller's. InUse."""
        return self._remove_unused(tables.models, tables.models.c.name, name)

    def jobs_using(self, name: str) -> list[str]:
        """Ids of jobs that have not ended and read this file or start from this model."""
        return self._database.read(partial(_users, name))

    def _remove_unused(self, table: Table, column: Column[str], name: str) -> bool:
        """In one transaction, so that no job comes to use it in between."""

        def change(c: Connection) -> bool:
            if users := _users(name, c):
                raise InUse(name, users)
            return c.execute(delete(table).where(column == name)).rowcount > 0

        return self._database.write(change, frees=True)


def _holds(column: Column[str], text: str) -> ColumnElement[bool]:
    """Whether the text is in the column, A and a the same; no letter of it stands for others."""
    return func.instr(func.casefold(column), text.casefold()) > 0


def _users(name: str, c: Connection) -> list[str]:
    jobs = tables.jobs
    uses = (
        (jobs.c.training_file == name) | (jobs.c.validation_file == name) | (jobs.c.model == name)
    )
    question = select(jobs.c.id).where(uses, jobs.c.status.not_in(TERMINAL))
    return [str(job_id) for job_id in c.execute(question).scalars()]
