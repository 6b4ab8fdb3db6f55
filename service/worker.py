"""The supervisor: keeps one engine process alive and says what became of the job it was given.

It lives in the API's event loop. The death of the process is seen at once, since its end of the
socket closes; a hang is seen because its progress count stands still. Either way the process is
replaced, and whoever gave the job decides whether to give it again.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headrace.engine import StopReason

from .child import Child, Death
from .engine_process import DEFAULT_ENGINE, EXIT_DEVICE, EXIT_RENEW
from .ipc import Finished, Heartbeat, Hello, Message, Run, Stop, Telemetry
from .lockfile import is_free, read_pid

log = logging.getLogger(__name__)

State = Literal["stopped", "waiting", "starting", "ready", "busy", "restarting"]
CALM_SECONDS = 60.0  # a process that lived this long was worth starting


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What the supervisor is told. Times are seconds.

    `hang` is how long progress may stand still, at least; `old_worker` how long the worker of a
    dead API may take to finish its step; `drain` the same for our own at shutdown.
    """

    data_dir: Path
    engine: str = DEFAULT_ENGINE
    hello_seconds: float = 300.0
    hang_seconds: float = 60.0
    old_worker_seconds: float = 600.0
    drain_seconds: float = 600.0
    back_off_seconds: float = 0.5
    max_back_off_seconds: float = 30.0


class Worker:
    """Start it once in a running loop, give it one job at a time, stop it at the end.

    `on_telemetry` is called with the newest numbers of the running job, about once a second.
    """

    def __init__(
        self,
        options: WorkerOptions,
        *,
        on_telemetry: Callable[[Telemetry], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._on_telemetry = on_telemetry
        self._child: Child | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._ready = asyncio.Event()
        self._alone = asyncio.Event()
        self._run: Run | None = None
        self._seen_running = False
        self._job_ended: asyncio.Future[Death | None] | None = None
        self._hang_seconds = options.hang_seconds
        self._failures = 0
        self._last_death: Death | None = None
        self._starts = 0
        self._progress = -1
        self._moved_at = self._beat_at = time.monotonic()
        self.state: State = "stopped"
        self.hello: Hello | None = None
        self.telemetry: Telemetry | None = None

    def start(self) -> None:
        """Begin to keep a process alive."""
        self._keeper = asyncio.create_task(self._keep(), name="worker-keeper")

    async def alone(self) -> None:
        """Wait until no worker of an API before this one is left."""
        await self._alone.wait()

    async def ready(self) -> bool:
        """Wait until the process says that it can take a job; False when it was stopped instead.

        A process that ends just after it said so is waited for anew: by then it has a successor.
        """
        while not (self._ready.is_set() or self._stopping.is_set()):
            waits = [asyncio.create_task(e.wait()) for e in (self._ready, self._stopping)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return not self._stopping.is_set()

    async def run(
        self,
        run: Run,
        *,
        step_seconds: float = 0.0,
        wanted_stop: Callable[[], StopReason | None] = lambda: None,
    ) -> Death | None:
        """Give a job and wait until it has left the process: None, or the death of the process.

        `step_seconds` is what a step takes as far as is known; three of the longest step are no
        hang. `wanted_stop` says whether the job was to be stopped before the process knew of it.
        """
        if not await self.ready():
            return Death(status=0, cause="the worker was stopped")
        assert self._child and self._run is None, "one job at a time"
        self._run, self._seen_running = run, False
        self._job_ended = asyncio.get_running_loop().create_future()
        self._hang_seconds = max(self._options.hang_seconds, 3 * step_seconds)
        self._progress, self._moved_at = -1, time.monotonic()
        self.state = "busy"
        self._child.send(run)
        if reason := wanted_stop():
            self.stop_job(run.job_id, reason)
        try:
            return await self._job_ended
        finally:
            self._run = self._job_ended = self.telemetry = None

    def stop_job(self, job_id: str, reason: StopReason) -> None:
        """Ask for the job's end at its next step boundary."""
        if self._child and self._run and self._run.job_id == job_id:
            self._child.send(Stop(job_id=job_id, reason=reason))

    async def stop(self) -> None:
        """Let the process finish its step, commit and end; end it when that takes too long.

        One that still loads its code has nothing to finish, and is ended at once.
        """
        self._stopping.set()
        if self._child and self.hello is None:
            self.kill()
        elif self._child:
            self._child.send(Stop(reason="shutdown"))
        if self._keeper:
            await asyncio.wait([self._keeper], timeout=self._options.drain_seconds)
            self.kill()
            await self._keeper

    def kill(self) -> None:
        """End the process at once; its last commit is what is left."""
        self._ready.clear()  # nobody is to give it a job any more
        if self._child:
            self._child.kill()

    def status(self) -> dict[str, Any]:
        """State, pid, ages in seconds and the last death, as JSON-ready values."""
        return {
            "state": self.state,
            "pid": self._child.pid if self._child else None,
            "job_id": self._run.job_id if self._run else None,
            "heartbeat_age_seconds": round(time.monotonic() - self._beat_at, 3),
            "restarts": max(0, self._starts - 1),
            "last_death": self._last_death.cause if self._last_death else None,
            "rss_at_start_bytes": self.hello.rss_bytes if self.hello else None,
            "telemetry": self.telemetry.data if self.telemetry else {},
        }

    async def _keep(self) -> None:
        while not self._stopping.is_set():
            self.state = "waiting"
            await self._await_old_worker()
            if self._stopping.is_set():
                break
            self._alone.set()
            started = time.monotonic()
            death = await self._live_once()
            self._note_death(death, time.monotonic() - started)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._back_off())
        self.state = "stopped"

    async def _live_once(self) -> Death:
        """One process from its start to its end."""
        self.state, self.hello, self._starts = "starting", None, self._starts + 1
        self._moved_at = self._beat_at = time.monotonic()
        arguments = [sys.executable, "-m", "headrace.service.engine_process"]
        arguments += ["--data-dir", str(self._options.data_dir), "--engine", self._options.engine]
        output = self._options.data_dir / "worker.log"
        child = self._child = Child(arguments, output=output, on_message=self._take)
        hang = None
        while not await child.gone(within_seconds=min(1.0, self._options.hang_seconds / 4)):
            if hang := self._find_hang():
                child.dump_stacks()
                await child.gone(within_seconds=0.5)
                child.kill()
                await child.gone(within_seconds=5.0)
                break
        self._ready.clear()
        death = await child.reap()
        self._child = None
        return Death(status=death.status, cause=hang) if hang else death

    def _find_hang(self) -> str | None:
        quiet = time.monotonic() - self._moved_at
        limit = self._hang_seconds if self.hello else self._options.hello_seconds
        if quiet <= limit:
            return None
        what = f"job {self._run.job_id}" if self._run else "the worker"
        return (
            f"{what} made no progress for {quiet:.0f} s; the stacks of its threads are in its log"
        )

    def _note_death(self, death: Death, lived_seconds: float) -> None:
        ended_by_us = self._stopping.is_set() and self.hello is None
        clean = ended_by_us or death.status in (0, EXIT_RENEW)
        self._failures = 0 if clean or lived_seconds > CALM_SECONDS else self._failures + 1
        if death.status == EXIT_DEVICE:
            death = Death(status=death.status, cause="the device failed; see the job's log")
        if not clean:
            self._last_death = death
            log.warning("the worker died: %s", death.cause)
        self.state = "restarting"
        self._end_job(death)

    def _back_off(self) -> float:
        if not self._failures:
            return 0.0
        grown = self._options.back_off_seconds * 2 ** min(self._failures - 1, 16)
        return float(min(grown, self._options.max_back_off_seconds))

    def _take(self, message: Message) -> None:
        if isinstance(message, Hello):
            self.hello, self.state = message, "ready"
            self._moved_at = self._beat_at = time.monotonic()
            self._ready.set()
        elif isinstance(message, Heartbeat):
            self._take_heartbeat(message)
        elif isinstance(message, Telemetry):
            self.telemetry = message
            seconds = 3 * message.data.get("step_seconds", 0.0)
            self._hang_seconds = max(self._hang_seconds, seconds)
            self._on_telemetry(message)
        elif isinstance(message, Finished):
            if message.leaving:
                self._ready.clear()  # the next job is for its successor
            self._finish(message.job_id)

    def _take_heartbeat(self, beat: Heartbeat) -> None:
        self._beat_at = time.monotonic()
        if self._run is None or beat.progress != self._progress:
            self._progress, self._moved_at = beat.progress, self._beat_at
        if self._run and beat.job_id == self._run.job_id:
            self._seen_running = True
        elif self._run and self._seen_running:
            self._finish(self._run.job_id)  # its Finished was lost in a full buffer

    def _finish(self, job_id: str) -> None:
        if self._run and self._run.job_id == job_id:
            self._failures = 0
            self.state = "ready"
            self._end_job(None)

    def _end_job(self, death: Death | None) -> None:
        if self._job_ended and not self._job_ended.done():
            self._job_ended.set_result(death)

    async def _await_old_worker(self) -> None:
        """Wait for the worker of a dead API to finish its step; end it when that takes too long."""
        path = self._options.data_dir / "worker.lock"
        deadline = time.monotonic() + self._options.old_worker_seconds
        while not is_free(path) and not self._stopping.is_set():
            if time.monotonic() > deadline:
                end_recorded_worker(path)
            await asyncio.sleep(0.1)


def end_recorded_worker(lock_path: Path) -> None:
    """Kill the process that a worker lock names, if it is a worker of that data directory."""
    pid = read_pid(lock_path)
    if pid is None:
        return
    with suppress(FileNotFoundError, ProcessLookupError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ours = b"headrace.service.engine_process", os.fsencode(lock_path.parent)
        if all(word in command for word in ours):
            log.warning("ending worker %d, which did not finish its step in time", pid)
            os.kill(pid, signal.SIGKILL)
