"""How soon people are told the truth after a death: of the API's process, and of the worker's.

The daemon runs with a scripted engine, whose steps take a twentieth of a second. Its API is killed
(SIGKILL) during a job and started again: seconds from that start until the job's true state is
answered. Then the worker is killed: seconds until the job tells the cause. Prints one JSON object;
the exit status is 1 when one of `--rounds` took longer than `--limit` seconds, or a job did not go
on to its end.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from bench.inputs import box, finish
from headrace.service.client import Client
from scripted_service import (
    all_events,
    answers,
    await_,
    create,
    free_port,
    scripted_service,
    write_house,
)

STEPS = 100
KILLED_AT = 10


def main() -> int:
    """Both deaths, `--rounds` times; 0 when all are within the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=5.0, help="seconds")
    parser.add_argument("--json", type=Path, help="also write the result there")
    arguments = parser.parse_args()
    rounds = [one_round() for _ in range(arguments.rounds)]
    found = {
        name: {"median": median(times), "slowest": max(times)}
        for name in ("api_back_s", "cause_told_s")
        for times in [[one[name] for one in rounds]]
    }
    holds = all(one["slowest"] <= arguments.limit for one in found.values())
    holds = holds and all(one["whole"] for one in rounds)
    result = {"holds": holds, "limit_s": arguments.limit, **found, "rounds": rounds}
    finish({**result, "load_average": os.getloadavg()[0], "box": box()}, arguments.json)
    return 0 if holds else 1


def one_round() -> dict[str, Any]:
    """Kill the API, then the worker, within one job; seconds until each is put right."""
    with tempfile.TemporaryDirectory(prefix="headrace-deaths-") as folder:
        home, port = Path(folder), free_port()
        write_house(home, {"steps": STEPS, "step_seconds": 0.05})
        with scripted_service(home, port=port) as first:
            job_id = create(first.url)
            reach(first.url, job_id, KILLED_AT)
            first.process.kill()
            first.process.wait()
        started = time.monotonic()
        with scripted_service(home, port=port) as second, Client(second.url) as client:
            await_(lambda: answers(second.url))
            state = client.job(job_id)["status"]
            back = time.monotonic() - started
            reach(second.url, job_id, 2 * KILLED_AT)
            os.kill(client.status()["worker"]["pid"], signal.SIGKILL)
            told = await_(lambda: is_told(second.url, job_id))
            await_(lambda: client.job(job_id)["status"] not in ("running", "queued"))
            events = all_events(second.url, job_id)
            steps = [event["step"] for event in events if event["type"] == "metrics"]
            whole = steps == list(range(1, STEPS + 1)) and state in ("running", "queued")
    return {"api_back_s": round(back, 3), "cause_told_s": round(told, 3), "whole": whole}


def is_told(url: str, job_id: str) -> bool:
    """Whether the job's story has the signal that killed the worker."""
    return any("SIGKILL" in event["message"] for event in all_events(url, job_id))


def reach(url: str, job_id: str, step: int) -> None:
    """Wait until the job has made so many steps."""
    with Client(url) as client:
        await_(lambda: client.job(job_id)["engine"].get("step", 0) >= step)


if __name__ == "__main__":
    sys.exit(main())
