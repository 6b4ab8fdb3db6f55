"""Runs prepared jobs one after the other, each through every death of the worker to its end."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy.exc import OperationalError

from headrace.engine import StopReason
from headrace.storage import StoreError

from .asked_as import message_of
from .asked_stop import AskedStop
from .child import Death
from .engine_process import EXIT_RENEW
from .full_disk import RETRY_SECONDS, has_room, is_full, patiently
from .ipc import Run
from .job_state import drop_state, spec_of
from .jobs import IllegalMove, JobRecord, Status
from .journal import Journal
from .json_file import read_json, write_json
from .prepare_loop import is_prepared
from .settings import Settings
from .tail import Tail, follow
from .worker import Worker

log = logging.getLogger(__name__)

MAX_DEATHS = 3  # without a new step in between; then the job fails with what killed the worker

STOPPED: dict[StopReason, Status] = {"cancel": "cancelled", "pause": "paused", "shutdown": "queued"}


class RunLoop:
    """`run` goes on until `draining`; `stop_job` may come at any time, from the same event loop."""

    def __init__(self, settings: Settings, journal: Journal, worker: Worker) -> None:
        self._settings = settings
        self._journal = journal
        self._worker = worker
        self._wake = asyncio.Event()
        self._moving = asyncio.Lock()  # a job is taken, or stopped, not both
        self._stops: dict[str, StopReason] = {}
        self.draining = False

    def wake(self) -> None:
        """The queue has changed, or the loop is to end."""
        self._wake.set()

    async def run(self) -> None:
        """Run what is queued and prepared, in the order of the queue, until draining."""
        await self._worker.alone()
        await patiently(self._take_up_interrupted)
        while await self._worker.ready() and not self.draining:
            self._wake.clear()
            job = await patiently(self._take_next)
            if job is None:
                await self._wake.wait()
            else:
                await self._run_or_fail(job)

    async def stop_job(self, job_id: str, reason: StopReason) -> None:
        """Cancel or pause: at once, or at the step boundary of the process that runs the job.

        What was asked is kept, whatever dies before that. IllegalMove, and KeyError.
        """
        async with self._moving:
            job = await self._journal.call(self._journal.job, job_id)
            if job and job.status == "running":
                if self._stops.get(job_id) == "cancel" != reason:
                    raise IllegalMove(job_id, "being cancelled", STOPPED[reason])
                self._stops[job_id] = reason
                await asyncio.to_thread(self._asked_stop(job_id).keep, reason)
                self._worker.stop_job(job_id, reason)
                await self._journal.call(self._tell_phase, job_id, "finishing the step")
                return
            job = await self._journal.call(self._journal.move, job_id, STOPPED[reason])
        if reason == "cancel":
            await asyncio.to_thread(self.drop_state, job)

    def drop_state(self, job: JobRecord) -> None:
        """Give the volumes back the space of a job that has succeeded or was cancelled. Blocking.

        The state of a failed job stays where it is.
        """
        try:
            self.free_state(job)
        except (StoreError, OSError) as error:
            log.warning("cannot remove the training state of job %s: %s", job.id, error)

    def free_state(self, job: JobRecord) -> bool:
        """Remove a job's training state; whether there was any that is not another's by now.

        Blocking; StoreError, OSError.
        """
        spec = spec_of(self._settings.jobs_dir, job.id)
        if spec is None or self._journal.jobs_of_state(job.state_name)[0].id != job.id:
            return False
        return drop_state(spec["volumes"], job.state_name)

    async def _take_up_interrupted(self) -> None:
        """Jobs marked as running that no process runs: what their logs say, else the queue.

        Also gives back the space of jobs that ended just before the daemon did. It is made again
        from its beginning where there is no room to write down what it finds.
        """
        for job in await self._journal.call(self._journal.unfinished):
            if job.status == "running":
                if reason := await asyncio.to_thread(self._asked_stop(job.id).read):
                    self._stops[job.id] = reason
                try:
                    await self._journal.call(self._tail(job.id).settle)
                except Exception as error:
                    if is_full(error):
                        raise
                    await self._fail_to_follow(job, error)
                told = "The daemon was restarted; waiting to resume."
                await self._end_if_running(job.id, told)
        jobs = self._journal.jobs
        done = await self._journal.call(jobs, status=("succeeded", "cancelled"), limit=10_000)
        for job in done:
            await asyncio.to_thread(self.drop_state, job)

    async def _end_if_running(self, job_id: str, message: str) -> None:
        """Move a job that nothing runs any more to where a user wanted it, else to the queue."""
        async with self._moving:
            job = await self._journal.call(self._journal.job, job_id)
            if job and job.status == "running":
                reason = self._stops.get(job_id, "shutdown")
                told = message if reason == "shutdown" else None
                move = self._journal.move
                await self._journal.call(move, job_id, STOPPED[reason], message=told, phase=None)
            if self._stops.pop(job_id, None):
                await asyncio.to_thread(self._asked_stop(job_id).forget)

    async def _take_next(self) -> JobRecord | None:
        async with self._moving:
            job = await self._journal.call(self._journal.next_queued)
            if job is None or not is_prepared(self._settings, job.id):
                return None
            try:
                return await self._journal.call(self._journal.move, job.id, "running")
            except IllegalMove:
                return None

    async def _run_or_fail(self, job: JobRecord) -> None:
        """What goes wrong with one job, here and not in its run, ends that job, not the queue.

        Want of room ends none: the job waits for its turn, and for room.
        """
        try:
            await self._run(job)
        except Exception as error:
            self._worker.kill()  # it may still run the job
            if not is_full(error):
                await self._fail_to_follow(job, error)
            told = "The data directory was full; waiting to resume."
            await patiently(partial(self._end_if_running, job.id, told))

    async def _fail_to_follow(self, job: JobRecord, error: Exception) -> None:
        log.error("job %s cannot be followed", job.id, exc_info=error)
        message = f"The daemon failed to follow the job: {message_of(error)}."
        await self._fail(job.id, "internal", message)

    async def _run(self, job: JobRecord) -> None:
        """Give the job to the worker until it has an end that is not the worker's."""
        if job.id not in self._stops:
            await asyncio.to_thread(self._asked_stop(job.id).forget)  # of a run before
        tail = self._tail(job.id)
        best_step, deaths = job.engine.get("step", 0), 0
        while True:
            death = await follow(tail, self._give(job))
            had_no_room = death is not None and await self._wait_for_room(job.id)
            now = await self._journal.call(self._journal.job, job.id)
            if now is None or now.status != "running":
                break
            if self.draining or job.id in self._stops:
                if death and not had_no_room and not self.draining:
                    await patiently(partial(self._journal.call, self._tell_end, job.id, death))
                break
            if had_no_room or (death and death.status == EXIT_RENEW):
                continue  # which is not for the job to answer for
            deaths = deaths + 1 if now.engine.get("step", 0) <= best_step else 1
            best_step = max(best_step, now.engine.get("step", 0))
            cause = death.cause if death else "it ended without a result"
            if deaths >= MAX_DEATHS:
                message = (
                    f"The worker died {MAX_DEATHS} times without progress, at last of: {cause}."
                )
                await self._fail(job.id, "worker_died", message)
                break
            tell = partial(self._journal.call, self._tell_death, job.id, cause, deaths)
            await patiently(tell)
        told = "The daemon was stopped; waiting to resume."
        await patiently(partial(self._end_if_running, job.id, told))
        ended = await self._journal.call(self._journal.job, job.id)
        if ended and ended.status in ("succeeded", "cancelled"):
            await asyncio.to_thread(self.drop_state, ended)

    async def _give(self, job: JobRecord) -> Death | None:
        job_dir = self._settings.jobs_dir / job.id
        await asyncio.to_thread(apply_limits, job_dir / "spec.json", job.request)
        after_seq = await self._journal.call(self._journal.last_worker_seq, job.id)
        run = Run(
            job_id=job.id,
            spec_path=str(job_dir / "spec.json"),
            job_dir=str(job_dir),
            state_name=job.state_name,
            after_seq=after_seq,
            limits=job.request.get("limits"),
            integrations=job.request.get("integrations"),
        )
        return await self._worker.run(
            run,
            step_seconds=job.engine.get("step_time_s", 0.0),
            wanted_stop=lambda: self._stops.get(job.id),
        )

    def _tell_phase(self, job_id: str, phase: str) -> None:
        """Say what a job is at; on a full drive it goes without saying."""
        try:
            self._journal.set_fields(job_id, phase=phase)
        except OperationalError as error:
            if not is_full(error):
                raise

    def _tell_end(self, job_id: str, death: Death) -> None:
        message = f"The worker died: {death.cause}. The last commit is what is left."
        data: dict[str, Any] = {"cause": death.cause}
        self._journal.add_event(job_id, type="message", level="warn", message=message, data=data)

    def _tell_death(self, job_id: str, cause: str, deaths: int) -> None:
        message = (
            f"The worker died: {cause}. Resuming from the last commit "
            f"(attempt {deaths + 1} of {MAX_DEATHS} without progress)."
        )
        data: dict[str, Any] = {"cause": cause, "attempt": deaths + 1}
        self._journal.add_event(job_id, type="message", level="warn", message=message, data=data)

    async def _fail(self, job_id: str, code: str, message: str) -> None:
        error = {"code": code, "message": message, "param": None}
        move = partial(self._journal.move, message=message, error=error, phase=None)
        with suppress(IllegalMove):  # it has an end already
            await patiently(partial(self._journal.call, move, job_id, "failed"))

    async def _wait_for_room(self, job_id: str) -> bool:
        """Wait while the data directory is full; whether that was so."""
        was_full = False
        while not (self.draining or job_id in self._stops or has_room(self._settings.data_dir)):
            if not was_full:
                log.warning("job %s waits for room in %s", job_id, self._settings.data_dir)
            was_full = True
            await asyncio.sleep(RETRY_SECONDS)
        return was_full

    def _asked_stop(self, job_id: str) -> AskedStop:
        return AskedStop(self._settings.jobs_dir / job_id)

    def _tail(self, job_id: str) -> Tail:
        job_dir = self._settings.jobs_dir / job_id
        return Tail(self._journal, job_id, job_dir=job_dir, files_dir=self._settings.files_dir)


def apply_limits(spec_path: Path, request: Mapping[str, Any]) -> None:
    """Write the request's limits, which a resume may have changed, into the job's settings."""
    wanted = (request.get("limits") or {}).get("max_bytes_written")
    spec = read_json(spec_path)
    if spec is not None and spec.get("max_bytes_written") != wanted:
        write_json(spec_path, {**spec, "max_bytes_written": wanted})
