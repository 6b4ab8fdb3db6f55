"""How fast lists and pages answer from a journal of many finished jobs and events.

Fills a new journal, serves it, and asks each question several times. Prints one JSON object; the
exit status is 1 when the slowest answer to any question took longer than `--limit-ms`.
"""

import argparse
import gc
import json
import logging
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2

from fakes_daemon import FakeDaemon, serving, some_job
from headrace.service.event_table import event_id
from headrace.service.events import Hub
from headrace.service.journal import Journal

STEP = {
    "total_steps": 1000, "train_loss": 2.5, "train_mean_token_accuracy": 0.5, "learning_rate": 1e-5,
    "grad_norm": 1.25, "step_seconds": 1.5, "forward_seconds": 0.5, "backward_seconds": 1.0,
    "links": {name: {"payload_bytes": 10**9, "padding_bytes": 0, "operations": 99,
                     "busy_seconds": 0.7} for name in ("nvme_read", "nvme_write", "h2d", "d2h")},
}  # fmt: skip
PLAN = {"tiers": ["nvme"] * 34, "link_bytes": {str(i): STEP["links"] for i in range(6)},
        "forecast": {"step_seconds": {"expected": 1.5}, "conditions": [STEP] * 20}}  # fmt: skip


def fill(path: Path, num_jobs: int, events_each: int) -> list[str]:
    """Finished jobs with a model and a checkpoint each, and their events; ids, oldest first."""
    journal = Journal.open(path, Hub())
    ids = []
    for i in range(num_jobs):
        engine = {"plan": PLAN, "step": events_each, "total_steps": events_each, "loss": 2.5}
        job = journal.add_job(some_job(engine=engine, metadata={"run": str(i)}))
        journal.move(job.id, "running")
        journal.add_checkpoint(job.id, step=1, name=f"{job.id}:ckpt", path="/", metrics={})
        journal.add_model(name=f"ft:tiny:{job.id}", path="/", job_id=job.id)
        ids.append(job.id)
    journal.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany(
            "insert into events (job_id, seq, created_at, level, type, message, step, data,"
            " worker_seq) values (?, ?, 1700000000, 'info', 'metrics', ?, ?, ?, ?)",
            rows(ids, events_each),
        )
        connection.execute("update jobs set event_seq = ?, worker_seq = ?, status = 'succeeded',"
                           " finished_at = 1700000000", (events_each + 2, events_each))  # fmt: skip
        connection.commit()
    return ids


def rows(ids: list[str], events_each: int) -> Iterator[tuple[Any, ...]]:
    """Step reports, as the journal keeps them."""
    for job_id in ids:
        for step in range(1, events_each + 1):
            message = f"Step {step}/{events_each}: training loss=2.5000"
            yield job_id, step + 2, message, step, json.dumps({"step": step, **STEP}), step


def questions(ids: list[str], events_each: int) -> dict[str, str]:
    """What people and programs ask of a journal."""
    job, middle = ids[len(ids) // 2], event_id(ids[0], events_each // 2)
    jobs = "/v1/fine_tuning/jobs"
    return {
        "page": "/",
        "page of a job": f"/jobs/{job}",
        "page of the oldest jobs": f"/?after={ids[1]}",
        "form for a job": "/new",
        "a job's curves": f"{jobs}/{job}/series",
        "status": "/status",
        "metrics": "/metrics",
        "jobs, first 20": jobs,
        "jobs, first 100": f"{jobs}?limit=100",
        "jobs, the oldest": f"{jobs}?after={ids[1]}",
        "jobs by metadata": f"{jobs}?metadata[run]={len(ids) // 3}",
        "one job": f"{jobs}/{job}",
        "events, first 20": f"{jobs}/{job}/events",
        "events, 100 from the middle": f"{jobs}/{ids[0]}/events?limit=100&after={middle}",
        "checkpoints": f"{jobs}/{job}/checkpoints",
        "models": "/v1/models",
        "files": "/v1/files",
    }


def measure(url: str, asked: dict[str, str], times: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each question: the first answer, the median and the slowest one."""
    found = {}
    with httpx2.Client(base_url=url, timeout=60) as client:
        for name, path in asked.items():
            taken = []
            for _ in range(times):
                started = time.perf_counter()
                answer = client.get(path)
                taken.append(1000 * (time.perf_counter() - started))
                assert answer.status_code == 200, answer.text
            ranked = sorted(taken)
            found[name] = {"first": taken[0], "median": ranked[times // 2], "slowest": ranked[-1],
                           "bytes": len(answer.content)}  # fmt: skip
    return found


def main() -> int:
    """Fill, serve, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--events-each", type=int, default=1000)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--limit-ms", type=float, default=200)
    parser.add_argument("--json", type=Path, help="also write the result there")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as home:
        daemon = FakeDaemon(Path(home))
        daemon.settings.database_path.parent.mkdir(parents=True, exist_ok=True)
        ids = fill(daemon.settings.database_path, options.jobs, options.events_each)
        size = daemon.settings.database_path.stat().st_size
        with serving(daemon) as url:
            gc.freeze()  # as the product's own server does (service/server.py)
            found = measure(url, questions(ids, options.events_each), options.times)
    slowest = max(one["slowest"] for one in found.values())
    result = {"jobs": options.jobs, "events": options.jobs * options.events_each,
              "database_bytes": size, "slowest_ms": slowest, "milliseconds": found}  # fmt: skip
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(slowest > options.limit_ms)


if __name__ == "__main__":
    sys.exit(main())
