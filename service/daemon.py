"""The daemon: everything that goes on behind the API, started and stopped with it.

`resolve`, `status` and `ready` may block and are called in threads; the rest runs on the API's
event loop and never waits for the worker.
"""

import asyncio
import logging
import shutil
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sqlalchemy.exc import SQLAlchemyError

from headrace.storage import StoreError

from .data_dir import DataDirUnusable, take_data_dir
from .database import CannotMigrate
from .drive_watch import GONE, DriveWatch
from .errors import ApiError
from .events import Hub
from .files import require_rows
from .ipc import Telemetry
from .job_spec import ResolvedJob, Sources, prepare_request, resolve_job
from .job_state import held_bytes
from .jobs import JobRecord
from .journal import Journal
from .method import kind_of, method_of
from .model_names import find_model, unknown_model
from .prepare_loop import PrepareLoop
from .prepare_process import DEFAULT_PREPARE
from .prepare_request import PrepareRequest
from .preparer import Preparer
from .run_loop import RunLoop
from .settings import Settings
from .site import Site, gpus, memory, probe_volumes
from .worker import Worker, WorkerOptions

log = logging.getLogger(__name__)

DISK_FLOOR_BYTES = 1 << 30  # below that the data directory cannot take uploads and logs for long


class Daemon:
    """One per data directory. `start` and `stop` belong to one running event loop.

    `worker` and `prepare` put other code in the place of the engine, for tests.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        worker: WorkerOptions | None = None,
        prepare: str = DEFAULT_PREPARE,
    ) -> None:
        self.settings = settings
        self.hub = Hub()
        options = worker or WorkerOptions(data_dir=settings.data_dir)
        self._worker = Worker(options, on_telemetry=self._publish)
        self._preparer = Preparer(prepare=prepare)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Take the data directory, open the journal, start the worker and the queue.

        DaemonRunning when another daemon has the directory, DataDirUnusable when it is of no use;
        StoreError for a volume of no use.
        """
        with usable(self.settings.data_dir):
            for folder in (self.settings.data_dir, self.settings.files_dir, self.settings.jobs_dir):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = take_data_dir(self.settings.data_dir)
        try:
            self.site = Site.of(self.settings)
            self._drives = DriveWatch(await asyncio.to_thread(probe_volumes, self.settings))
            with usable(self.settings.data_dir):
                open_journal = partial(Journal.open, self.settings.database_path, self.hub)
                self.journal = await asyncio.to_thread(open_journal)
        except BaseException:
            self._lock.close()
            raise
        self._run_loop = RunLoop(self.settings, self.journal, self._worker)
        self._prepare_loop = PrepareLoop(
            self.settings,
            self.journal,
            self._preparer,
            request_of=self._prepare_request,
            on_prepared=self._run_loop.wake,
        )
        self._worker.start()
        self._tasks = [self._go(self._run_loop.run()), self._go(self._prepare_loop.run())]
        self._watching = asyncio.create_task(self._drives.run())

    async def drain(self) -> None:
        """Start nothing more, let the worker finish its step and commit, end all children."""
        run, prepare = self._tasks
        self._run_loop.draining = True
        self._run_loop.wake()
        prepare.cancel()
        self._watching.cancel()
        await self._worker.stop()
        await asyncio.wait([run], timeout=10)

    async def stop(self) -> None:
        """Drain, then close the journal and give the data directory back."""
        await self.drain()
        run, prepare = self._tasks
        run.cancel()
        await asyncio.gather(run, prepare, self._watching, return_exceptions=True)
        self.journal.close()
        self._lock.close()

    def resolve(self, body: dict[str, Any]) -> ResolvedJob:
        """Settle a create body; ApiError says why it cannot be done. Blocks for some seconds."""
        return resolve_job(body, self._sources(body), self._site_to_come())

    def wake(self) -> None:
        """A job was added or resumed: look at the queue."""
        self._prepare_loop.wake()
        self._run_loop.wake()

    async def stop_job(self, job_id: str, reason: Literal["cancel", "pause"]) -> None:
        """End or pause a job; one that runs goes on to its next step boundary first."""
        await self._run_loop.stop_job(job_id, reason)
        self._prepare_loop.give_up(job_id)
        self.wake()

    def free_job(self, job: JobRecord) -> bool:
        """Remove an ended job's training state; whether there was any. ApiError: why not."""
        try:
            return self._run_loop.free_state(job)
        except StoreError as error:
            message = f"The training state of job {job.id} stays: {error}."
            raise ApiError(400, message, code="state_in_use") from error

    def status(self) -> dict[str, Any]:
        """Worker, storage, device and disk, JSON-ready. The journal knows the jobs."""
        disk = shutil.disk_usage(self.settings.data_dir)
        worker = self._worker.status()
        return {
            "worker": worker,
            "device": {"type": self.site.device, "gpus": list(gpus())},
            "memory": memory(),
            "budgets": {
                "device_bytes": self.site.device_bytes,
                "host_bytes": self.site.host_bytes,
            },
            "storage": self._drives.status(worker["telemetry"].get("volumes", {})),
            "disk": {
                "path": str(self.settings.data_dir),
                "free_bytes": disk.free,
                "total_bytes": disk.total,
            },
            "draining": self._run_loop.draining,
        }

    def in_words(self) -> str:
        """What goes on, in a sentence; does not block."""
        worker = self._worker.status()
        state = "finishing the step in hand" if self._run_loop.draining else worker["state"]
        if worker["job_id"] is None:
            return f"worker {state}"
        step, total = (worker["telemetry"].get(name) for name in ("step", "total_steps"))
        return f"{state}: {worker['job_id']}" + (f", step {step} of {total}" if step else "")

    def ready(self) -> list[str]:
        """Why no job can be taken now; empty when one can."""
        reasons = ["the daemon is stopping"] if self._run_loop.draining else []
        worker = self._worker.status()
        if worker["state"] not in ("ready", "busy"):
            death = f", which last died of: {worker['last_death']}" if worker["last_death"] else ""
            reasons.append(f"the worker is {worker['state']}{death}")
        if shutil.disk_usage(self.settings.data_dir).free < DISK_FLOOR_BYTES:
            reasons.append(f"{self.settings.data_dir} has less than {DISK_FLOOR_BYTES} bytes free")
        for path in self._drives.missing():
            reasons.append(f"volume {path} {GONE}")
        if self.site.device == "cuda" and not gpus():
            reasons.append("the driver shows no GPU, and the device is cuda")
        try:
            self.journal.check_writable()
        except SQLAlchemyError as error:
            reasons.append(f"the journal cannot be written: {getattr(error, 'orig', error)}")
        for task in self._tasks:
            if task.done() and not task.cancelled() and not self._run_loop.draining:
                reasons.append(f"the queue has stopped: {task.exception()}")
        return reasons

    def _site_to_come(self) -> Site:
        """The site as another job will find it when the running one has given its space back."""
        lent: dict[str, int] = {}
        for job in self.journal.jobs(status=["running"], limit=1):
            lent = held_bytes(self.site.volumes, job.state_name)
        return replace(self.site, lent=lent)

    def _go(self, loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(loop)
        task.add_done_callback(_report_end)
        return task

    def _publish(self, telemetry: Telemetry) -> None:
        self.hub.publish_telemetry(telemetry.job_id, telemetry.data)

    def _sources(self, body: Mapping[str, Any]) -> Sources:
        """The files that a create body names. ApiError for a name that leads to nothing."""
        roots = self.settings.models_dir
        model = find_model(body["model"], roots, self.journal)
        if model is None:
            raise unknown_model(body["model"], roots, self.journal)
        training = require_rows(self.journal, body["training_file"], "training_file")
        validation = None
        if body.get("validation_file"):
            validation = require_rows(self.journal, body["validation_file"], "validation_file")
        return Sources(
            model_dir=model.path,
            training_file=Path(training.path),
            validation_file=Path(validation.path) if validation else None,
            training_name=training.filename,
            validation_name=validation.filename if validation else "",
        )

    def _prepare_request(self, job: JobRecord) -> PrepareRequest:
        settled = method_of(kind_of(job.request), job.hyperparameters)
        body = {**job.request, "method": settled, "seed": job.seed}
        return prepare_request(
            body,
            self._sources(body),
            self._site_to_come(),
            job_dir=self.settings.jobs_dir / job.id,
            cache_dir=self.settings.data_dir / "cache",
            after_seq=self.journal.last_worker_seq(job.id),
        )


@contextmanager
def usable(data_dir: Path) -> Iterator[None]:
    """Turn what the system or the database says of the directory into DataDirUnusable."""
    try:
        yield
    except CannotMigrate as error:
        raise DataDirUnusable(str(error)) from error
    except (OSError, SQLAlchemyError) as error:
        said = getattr(error, "orig", None) or error
        raise DataDirUnusable(
            f"the data directory {data_dir} cannot be used: {said}; see to its mode, its content "
            "and room on its drive, or name another data_dir"
        ) from error


def _report_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception():
        log.critical("the queue has stopped", exc_info=task.exception())
