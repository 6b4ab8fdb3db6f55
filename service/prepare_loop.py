"""Prepares queued jobs one after the other, beside whatever trains."""

import asyncio
import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from .asked_as import message_of
from .errors import ApiError
from .full_disk import has_room, is_full, patiently
from .job_state import spec_of
from .jobs import IllegalMove, JobRecord
from .journal import Journal
from .json_file import read_json, write_json
from .method import kind_of, method_of
from .origin import continued_spec
from .prepare_request import PrepareRequest
from .preparer import Preparer, accept, refusal_of
from .settings import Settings
from .tail import Tail, follow

log = logging.getLogger(__name__)


def is_prepared(settings: Settings, job_id: str) -> bool:
    """Whether the job's data sets and its TrainConfig are there."""
    return (settings.jobs_dir / job_id / "spec.json").exists()


class PrepareLoop:
    """`run` goes on until it is cancelled; `on_prepared` is called when it is done with a job."""

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        preparer: Preparer,
        *,
        request_of: Callable[[JobRecord], PrepareRequest],
        on_prepared: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._preparer = preparer
        self._request_of = request_of
        self._on_prepared = on_prepared
        self._wake = asyncio.Event()
        self._given_up: str | None = None

    def wake(self) -> None:
        """The queue has changed."""
        self._wake.set()

    def give_up(self, job_id: str) -> None:
        """The job was cancelled or paused: leave it, wherever its preparation is."""
        self._given_up = job_id
        self._preparer.cancel(self._settings.jobs_dir / job_id)

    async def run(self) -> None:
        """Prepare what is queued, in the order of the queue, for ever."""
        while True:
            self._wake.clear()
            job = await patiently(partial(self._journal.call, self._next))
            if job is None:
                await self._wake.wait()
            else:
                await patiently(partial(self._prepare_or_fail, job))
                self._on_prepared()

    def _next(self) -> JobRecord | None:
        validating = [job for job in self._journal.unfinished() if job.status != "running"]
        waiting = [*validating, *self._journal.queue()]
        return next((job for job in waiting if not is_prepared(self._settings, job.id)), None)

    async def _prepare_or_fail(self, job: JobRecord) -> None:
        """What goes wrong with one job ends that job, not the queue. A full drive is waited for."""
        try:
            await self._prepare(job)
        except Exception as error:
            if is_full(error):
                raise
            log.exception("preparing job %s failed", job.id)
            message = f"Preparing the job failed: {message_of(error)}."
            await self._fail(job.id, {"code": "internal", "message": message, "param": None})

    async def _prepare(self, job: JobRecord) -> None:
        job_dir = self._settings.jobs_dir / job.id
        self._given_up = None
        if job.state_name != job.id:
            await asyncio.to_thread(self._continue, job, job_dir)
            return
        try:
            await asyncio.to_thread(self._write_request, job, job_dir)
        except ApiError as error:
            await self._fail(job.id, error.envelope()["error"])
            return
        tail = Tail(self._journal, job.id, job_dir=job_dir, files_dir=self._settings.files_dir)
        cause = await follow(tail, self._preparer.prepare(job_dir))
        if cause and not has_room(self._settings.data_dir):
            raise OSError(errno.ENOSPC, f"{cause}, in a full data directory")
        now = await self._journal.call(self._journal.job, job.id)
        if now and now.status in ("queued", "validating_files") and self._given_up != job.id:
            await self._judge(now, job_dir, cause)

    def _write_request(self, job: JobRecord, job_dir: Path) -> None:
        job_dir.mkdir(parents=True, exist_ok=True)
        self._request_of(job).write()

    def _continue(self, job: JobRecord, job_dir: Path) -> None:
        """A job that goes on with another's state takes that one's data sets too."""
        old_spec = spec_of(self._settings.jobs_dir, job.request["resume_from"])
        assert old_spec is not None, job.request["resume_from"]
        job_dir.mkdir(parents=True, exist_ok=True)
        write_json(job_dir / "spec.json", continued_spec(job, old_spec))

    async def _judge(self, job: JobRecord, job_dir: Path, cause: str | None) -> None:
        if refusal := refusal_of(job_dir, cause):
            if refusal["code"] == "no_space":
                await self._pause(job.id, refusal["message"])
            else:
                await self._fail(job.id, refusal)
            return
        await self._journal.call(self._settle, job, job_dir)
        accept(job_dir)

    def _settle(self, job: JobRecord, job_dir: Path) -> None:
        """Echo what real lengths have decided, and let the job wait for its turn."""
        spec = read_json(job_dir / "prepared.json")
        assert spec is not None, job_dir
        accumulation = -(-spec["batch_rows"] // spec["microbatch_rows"])
        settled = job.hyperparameters | {
            "gradient_accumulation_steps": accumulation,
            "microbatch_tokens": spec["microbatch_tokens"],
        }
        method = method_of(kind_of(job.request), settled)
        self._journal.set_fields(job.id, hyperparameters=settled, method=method, phase=None)
        if job.status == "validating_files":
            self._journal.move(job.id, "queued")

    async def _pause(self, job_id: str, reason: str) -> None:
        """Want of room ends no job: what holds the drive now may go."""
        message = f"Paused for want of room: {reason} Free some space and resume."
        with suppress(IllegalMove):
            await self._journal.call(
                self._journal.move, job_id, "paused", message=message, phase=None
            )

    async def _fail(self, job_id: str, error: dict[str, Any]) -> None:
        move = self._journal.move
        message = error["message"]
        with suppress(IllegalMove):  # it was cancelled at this moment
            call = self._journal.call
            await call(move, job_id, "failed", message=message, error=error, phase=None)
