"""The daemon in one JSON object, for /status and the page."""

import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .contract import Daemon
from .queue_times import look
from .shapes import job_object

_STARTED = time.monotonic()


def product_version() -> str:
    """The installed version, or `0+checkout` when the code runs from a bare checkout."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "0+checkout"


def daemon_status(daemon: Daemon) -> dict[str, Any]:
    """Versions, readiness, jobs and queue, with what the daemon says of its worker and box."""
    journal = daemon.journal
    running = journal.jobs(status=["running"])
    places = look(journal)
    return {
        "object": "status",
        "version": product_version(),
        "uptime_seconds": round(time.monotonic() - _STARTED),
        "not_ready": list(daemon.ready()),
        "jobs": journal.job_counts(),
        "queue": [
            {"id": job.id, "model": job.model, "priority": job.priority, **asdict(places[job.id])}
            for job in journal.queue()
            if job.id in places
        ],
        "running": job_object(running[0]) if running else None,
        "telemetry": daemon.hub.telemetry(running[0].id) if running else None,
        "viewers": daemon.hub.num_viewers,
    } | daemon.status()
