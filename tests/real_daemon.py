"""A daemon with a scripted engine in real processes, and what a test asks of it."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from headrace.service.daemon import Daemon
from headrace.service.hyperparameters import settle
from headrace.service.jobs import FileRecord, JobRecord, new_id
from headrace.service.settings import Settings
from headrace.service.worker import WorkerOptions

Body = Callable[[Daemon], Awaitable[None]]


def make_settings(tmp_path: Path, **given: Any) -> Settings:
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True, exist_ok=True)
    (model / "config.json").write_text("{}")
    values: dict[str, Any] = {
        "data_dir": tmp_path / "data",
        "models_dir": (tmp_path / "models",),
        "device": "cpu",
    }
    return Settings(**(values | given))


def make_daemon(tmp_path: Path, *, script: dict[str, Any] | None = None, **given: Any) -> Daemon:
    settings = make_settings(tmp_path)
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    (settings.data_dir / "script.json").write_text(json.dumps(script or {}))
    options: dict[str, Any] = {"engine": "fake_engine:run_job", "back_off_seconds": 0.01} | given
    worker = WorkerOptions(data_dir=settings.data_dir, **options)
    return Daemon(settings, worker=worker, prepare="fake_engine:prepare")


def use(daemon: Daemon, body: Body) -> None:
    """Start the daemon, run the test's body, stop the daemon; all within a minute."""

    async def main() -> None:
        async with asyncio.timeout(60):
            await daemon.start()
            try:
                await body(daemon)
            finally:
                await daemon.stop()

    asyncio.run(main())


def add_job(
    daemon: Daemon,
    *,
    status: Any = "queued",
    priority: int = 0,
    in_the_way: bool = False,
    limits: dict[str, Any] | None = None,
) -> str:
    """A job as the create route makes it; `in_the_way` puts a file where its folder should be."""
    hyperparameters = settle({"n_epochs": 1}, num_rows=400, max_positions=64)
    file_path = daemon.settings.data_dir / "rows.jsonl"
    file_path.touch()
    if daemon.journal.file("file-1") is None:
        daemon.journal.add_file(
            FileRecord(
                id="file-1",
                bytes=0,
                created_at=1,
                filename="rows.jsonl",
                purpose="fine-tune",
                path=str(file_path),
                sha256="",
            )
        )
    job = JobRecord(
        id=new_id("ftjob-"),
        status=status,
        model="tiny",
        training_file="file-1",
        seed=1,
        created_at=1,
        hyperparameters=hyperparameters,
        request={"model": "tiny", "training_file": "file-1", "limits": limits},
        priority=priority,
    )
    if in_the_way:
        (daemon.settings.jobs_dir / job.id).touch()
    daemon.journal.add_job(job)
    daemon.wake()
    return job.id


def job(daemon: Daemon, job_id: str) -> JobRecord:
    found = daemon.journal.job(job_id)
    assert found
    return found


async def until(condition: Callable[[], Any], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


async def until_status(daemon: Daemon, job_id: str, *statuses: str) -> JobRecord:
    await until(lambda: job(daemon, job_id).status in statuses)
    return job(daemon, job_id)


def weight(daemon: Daemon, job_id: str) -> int:
    path = daemon.settings.jobs_dir / job_id / "committed.json"
    return int(json.loads(path.read_text())["weight"])


def messages(daemon: Daemon, job_id: str) -> str:
    return "\n".join(event.message for event in daemon.journal.events_since(job_id, 0))
