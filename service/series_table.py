"""The journal's numbers as columns, for curves, and its words without the numbers, for people."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Text, func, select, true, type_coerce, union_all

from . import tables
from .database import Database
from .event_table import event_of, seq_of_event
from .jobs import EventRecord

STEP_COLUMNS = (
    "train_loss",
    "train_mean_token_accuracy",
    "learning_rate",
    "grad_norm",
    "tokens_per_s",
    "step_seconds",
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
    "commit_seconds",
    "stall_read_seconds",
    "stall_write_seconds",
    "reward_margin",
    "reward_accuracy",
)
EVAL_COLUMNS = (
    "valid_loss",
    "valid_mean_token_accuracy",
    "valid_reward_margin",
    "valid_reward_accuracy",
)
BY_TYPE = "INDEXED BY events_step"  # SQLite would rather walk a job's every event in order
NUMBERS = ("commit", "metrics")  # types of events that are told as numbers, once a step


class SeriesTable:
    """The part of the journal that draws on events without reading them all."""

    _database: Database

    def step_numbers(
        self, job_id: str, *, first: int, last: int, points: int
    ) -> tuple[int, Sequence[dict[str, Any]]]:
        """Reports of the steps first..last in order, `points` or little more; and every which.

        All that there are, when they are so few; else those of the steps that some number divides,
        and of the last step.
        """
        step = tables.events.c.step
        count = self._count_steps(job_id, first, last)
        every = max(1, -(-count // points))
        if every == 1:
            return every, self._numbers(job_id, "metrics", step.between(first, last))
        wanted = sorted({*range(first + -first % every, last + 1, every), last})
        return every, self._numbers(job_id, "metrics", step.in_(wanted))

    def _count_steps(self, job_id: str, first: int, last: int) -> int:
        events = tables.events
        question = select(func.count()).where(
            events.c.job_id == job_id,
            events.c.type == "metrics",
            events.c.step.between(first, last),
        )
        return int(self._database.read(lambda c: c.execute(question).scalar()) or 0)

    def evaluations(self, job_id: str, *, first: int, last: int) -> Sequence[dict[str, Any]]:
        """Evaluations after the steps first..last, in order."""
        return self._numbers(job_id, "eval", tables.events.c.step.between(first, last))

    def last_step(self, job_id: str) -> int:
        """The newest step that was reported, 0 before the first."""
        events = tables.events
        question = select(func.max(events.c.step)).where(
            events.c.job_id == job_id, events.c.type == "metrics"
        )
        return int(self._database.read(lambda c: c.execute(question).scalar()) or 0)

    def story(
        self, job_id: str, *, after_id: str | None = None, limit: int = 50
    ) -> list[EventRecord]:
        """Events that are told in words, newest first, older than `after_id` (UnknownId)."""
        events = tables.events
        kind, (low, high) = events.c.type, NUMBERS
        mark = None if after_id is None else seq_of_event(job_id, after_id)
        # One question for each range of types, so that a million steps are passed over unseen.
        asked = [
            select(events)
            .with_hint(events, BY_TYPE, "sqlite")
            .where(
                events.c.job_id == job_id, where, true() if mark is None else events.c.seq < mark
            )
            for where in (kind < low, (kind > low) & (kind < high), kind > high)
        ]
        found = union_all(*asked).subquery()
        newest = select(found).order_by(found.c.seq.desc()).limit(limit)
        return [event_of(row) for row in self._database.all(newest)]

    def data_reports(self, job_id: str) -> list[dict[str, Any]]:
        """The newest report on each of the job's files, the training file's first."""
        events = tables.events
        found = select(events.c.seq, events.c.message, events.c.data).where(
            events.c.job_id == job_id,
            events.c.type == "message",
            func.json_extract(events.c.data, "$.histogram").is_not(None),
        )
        rows = self._database.all(found.with_hint(events, BY_TYPE, "sqlite"))
        reports = {
            str(row["message"]).partition(":")[0]: row["data"]
            for row in sorted(rows, key=lambda row: int(row["seq"]))
        }
        return [{"param": param, **reports[param]} for param in sorted(reports)]

    def _numbers(self, job_id: str, type: str, where: Any) -> Sequence[dict[str, Any]]:
        events = tables.events
        data = type_coerce(events.c.data, Text)  # decoded here: many rows, read in one go
        question = select(events.c.step, data.label("text")).where(
            events.c.job_id == job_id, events.c.type == type, where
        )
        rows = self._database.all(question.order_by(events.c.step))
        return [{**orjson.loads(row["text"] or "{}"), "step": row["step"]} for row in rows]


def columns(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, list[float | int | None]]:
    """Rows turned into one list a name, null where a row has no such number."""
    return {name: [row.get(name) for row in rows] for name in ("step", *names)}
