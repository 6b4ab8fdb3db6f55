"""Runs prepare children, one at a time, each under a memory cap of its own."""

import asyncio
import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from .child import child_environment, describe_end, oom_kills
from .json_file import read_json
from .prepare_process import DEFAULT_PREPARE

MEMORY_BYTES = 4 << 30  # tokenizers and a row at a time; a fraction of that is usual
POLL_SECONDS = 0.1
MAX_CHILDREN = 3  # for one job, when they are killed

log = logging.getLogger(__name__)


def refusal_of(job_dir: Path, cause: str | None) -> dict[str, Any] | None:
    """Why a job that was prepared cannot run, as an error object; None when it can.

    `cause` is what `Preparer.prepare` returned.
    """
    if (job_dir / "prepared.json").exists():
        return None
    if cause is None and (refusal := read_json(job_dir / "refusal.json")):
        return refusal
    message = f"Preparing the job failed: {cause}; see {job_dir / 'prepare.log'}."
    return {"code": "prepare_died", "message": message, "param": None}


def accept(job_dir: Path) -> None:
    """From here on the prepared job may run."""
    (job_dir / "prepared.json").replace(job_dir / "spec.json")


class Preparer:
    """Used by one task at a time; `cancel` may come in between."""

    def __init__(self, *, prepare: str = DEFAULT_PREPARE, memory_bytes: int = MEMORY_BYTES) -> None:
        self._prepare = prepare
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._job_dir: Path | None = None
        self._over = self._cancelled = False

    async def prepare(self, job_dir: Path) -> str | None:
        """Prepare the job of that folder: None when it came to its end, else what it died of.

        A child that was killed, by whomever, is followed by another one, up to three in all.
        """
        self._cancelled = False
        for attempt in range(1, MAX_CHILDREN + 1):
            status, cause = await self._live_once(job_dir)
            if status >= 0 or self._over or self._cancelled or attempt == MAX_CHILDREN:
                break
            log.warning("preparing %s again: %s", job_dir.name, cause)
        return cause

    async def _live_once(self, job_dir: Path) -> tuple[int, str | None]:
        """One child from its start to its end: its exit status, and what it died of."""
        kills = oom_kills()
        arguments = [sys.executable, "-m", "headrace.service.prepare_process"]
        arguments += ["--job-dir", str(job_dir), "--prepare", self._prepare]
        # The GPU is the worker's; one thread leaves the processor to the job that trains.
        environment = {"CUDA_VISIBLE_DEVICES": "", "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with (job_dir / "prepare.log").open("ab") as log:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=child_environment(environment),
            )
        self._process, self._job_dir = process, job_dir
        try:
            self._over = await self._watch(process)
            status = process.wait()
        finally:
            self._process = self._job_dir = None
            process.kill()
            process.wait()
            if process.stdin:
                process.stdin.close()
        if self._over:
            return status, f"it needed more than {self._memory_bytes} bytes of memory"
        return status, describe_end(status, oom_kills() - kills) if status else None

    def cancel(self, job_dir: Path) -> None:
        """End the preparation of that job, if it is the one under way."""
        if self._process and self._job_dir == job_dir:
            self._cancelled = True
            self._process.kill()

    async def _watch(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for the child's end; True when it had to be ended for its memory."""
        while process.poll() is None:
            with suppress(psutil.Error):
                if psutil.Process(process.pid).memory_info().rss > self._memory_bytes:
                    process.kill()
                    return True
            await asyncio.sleep(POLL_SECONDS)
        return False
