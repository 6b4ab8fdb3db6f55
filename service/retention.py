"""Old stories are shortened, so that the journal does not grow with every step ever made.

Of a job that ended long ago stay its moves, warnings, evaluations, checkpoints and results, and its
step reports thinned to a curve. Every step is still in the job's own log and in its result file.
"""

import time

from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select, update

from . import tables
from .database import Database

KEPT_STEPS = 1000  # reports of a job that stay, about
GONE = ("commit", "phase")  # types of events that say nothing once the job is over
JOBS_AT_ONCE = 10  # whose stories are shortened in one go: a start must not be busy with it
CHUNK = 5_000  # events removed at once: other writes come in between


class Retention:
    """The part of the journal that forgets."""

    _database: Database

    def shortened_seq(self, job_id: str) -> int:
        """The newest event that was removed from a job's story, 0 when it is whole."""
        jobs = tables.jobs
        question = select(jobs.c.shortened_seq).where(jobs.c.id == job_id)
        row = self._database.first(question)
        return int(row["shortened_seq"]) if row else 0

    def shorten_stories(self, *, ended_before: float) -> int:
        """Shorten the stories of jobs that ended before that time; how many jobs that were.

        Those that ended first come first, JOBS_AT_ONCE of them at most: the next call goes on.
        A viewer that comes back to the removed part is told so (`shortened_seq`) from before the
        first event goes; what a crash leaves over is removed the next time.
        """
        jobs = tables.jobs
        question = select(jobs.c.id).where(
            jobs.c.finished_at < int(ended_before), jobs.c.shortened_at.is_(None)
        )
        question = question.order_by(jobs.c.finished_at).limit(JOBS_AT_ONCE)
        found = [str(row["id"]) for row in self._database.all(question)]
        for job_id in found:
            self._shorten(job_id)
        return len(found)

    def _shorten(self, job_id: str) -> None:
        doomed = self._doomed(job_id)
        newest = select(func.max(tables.events.c.seq)).where(doomed)
        if seq := self._database.read(lambda c: c.execute(newest).scalar()):
            self._mark(job_id, shortened_seq=int(seq))
        while self._database.write(lambda c: _remove_some(c, doomed)):
            pass
        self._mark(job_id, shortened_at=int(time.time()))

    def _doomed(self, job_id: str) -> ColumnElement[bool]:
        """Which events of the job go."""
        events = tables.events
        steps = and_(events.c.job_id == job_id, events.c.type == "metrics")
        counts = select(func.count(), func.max(events.c.step)).where(steps)
        count, last = self._database.read(lambda c: c.execute(counts).one())
        every = max(1, -(-count // KEPT_STEPS))
        between = and_(
            events.c.type == "metrics",
            events.c.step % every != 0,
            events.c.step != last,
        )
        return and_(events.c.job_id == job_id, or_(events.c.type.in_(GONE), between))

    def _mark(self, job_id: str, **values: int) -> None:
        jobs = tables.jobs
        self._database.write(
            lambda c: c.execute(update(jobs).where(jobs.c.id == job_id).values(**values))
        )


def _remove_some(c: Connection, doomed: ColumnElement[bool]) -> int:
    events = tables.events
    some = c.execute(select(events.c.job_id, events.c.seq).where(doomed).limit(CHUNK)).all()
    for start in range(0, len(some), 500):
        seqs = [row.seq for row in some[start : start + 500]]
        c.execute(delete(events).where(events.c.job_id == some[0].job_id, events.c.seq.in_(seqs)))
    return len(some)
