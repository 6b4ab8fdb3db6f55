"""A daemon without children: the routes' other side, scripted by the test."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx2
import uvicorn

from headrace.service.app import create_app
from headrace.service.contract import Daemon
from headrace.service.errors import ApiError
from headrace.service.events import Hub
from headrace.service.jobs import JobRecord, new_id
from headrace.service.journal import Journal
from headrace.service.server import address, listen
from headrace.service.settings import Settings

AUTO = {"n_epochs": 3, "batch_size": 8, "learning_rate_multiplier": 1.0}


@dataclass(kw_only=True)
class FakeResolved:
    """A request with every "auto" settled by a fixed rule."""

    method: dict[str, Any]
    hyperparameters: dict[str, Any]
    seed: int
    plan: dict[str, Any] = field(default_factory=lambda: {"step_seconds": 1.5})
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class FakeDaemon:
    """Moves jobs as it is told; `resolved` and `stopped` tell what the routes asked for."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.settings = Settings(data_dir=data_dir, **settings)
        self.hub = Hub()
        self.resolved: list[dict[str, Any]] = []
        self.stopped: list[tuple[str, str]] = []
        self.freed: list[str] = []
        self.not_ready: list[str] = []
        self.refusal: Exception | None = None
        self.wakes = 0
        self.loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Open the journal."""
        self.loop = asyncio.get_running_loop()
        self.journal = Journal.open(self.settings.database_path, self.hub)

    async def drain(self) -> None:
        """Nothing runs."""

    def in_words(self) -> str:
        """Always the same."""
        return "idle"

    async def stop(self) -> None:
        """Close the journal."""
        self.journal.close()

    def resolve(self, body: dict[str, Any]) -> FakeResolved:
        """Fill in the autos; raise `refusal` when there is one."""
        if self.refusal:
            raise self.refusal
        self.resolved.append(body)
        if body["model"] != "tiny":
            raise ApiError(400, "No such model.", param="model", code="model_not_found")
        given = body["method"]["supervised"]["hyperparameters"]
        hyperparameters = AUTO | given
        method = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
        seed = body.get("seed", 7)
        return FakeResolved(method=method, hyperparameters=hyperparameters, seed=seed)

    def wake(self) -> None:
        """Count it."""
        self.wakes += 1

    async def stop_job(self, job_id: str, reason: Literal["cancel", "pause"]) -> None:
        """Move the job at once, as if its step had just ended."""
        self.stopped.append((job_id, reason))
        status: Any = {"cancel": "cancelled", "pause": "paused"}[reason]
        await self.journal.call(self.journal.move, job_id, status)

    def free_job(self, job: JobRecord) -> bool:
        """Say yes once a job."""
        first = job.id not in self.freed
        self.freed.append(job.id)
        return first

    def status(self) -> dict[str, Any]:
        """A worker that never was."""
        return {"worker": {"pid": 0, "state": "idle"}}

    def ready(self) -> list[str]:
        """What the test says."""
        return self.not_ready


def some_job(**changed: Any) -> JobRecord:
    """A queued job."""
    values: dict[str, Any] = {
        "id": new_id("ftjob-"),
        "status": "queued",
        "model": "tiny",
        "training_file": "file-1",
        "seed": 1,
        "created_at": 1_700_000_000,
    }
    return JobRecord(**values | changed)


@contextmanager
def serving(daemon: Daemon) -> Iterator[str]:
    """The app around `daemon` on a free port of this machine; the URL."""
    sock = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        create_app(daemon), log_config=None, timeout_graceful_shutdown=1, lifespan="on"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            threading.Event().wait(0.01)
        yield address(sock)
    finally:
        server.should_exit = True
        thread.join(20)
        sock.close()


@contextmanager
def calling(daemon: Daemon) -> Iterator[httpx2.Client]:
    """A client of the app around `daemon`, as patient as a slow machine needs."""
    with serving(daemon) as url, httpx2.Client(base_url=url, timeout=60) as client:
        yield client
