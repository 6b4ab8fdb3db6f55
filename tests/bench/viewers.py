"""What many live viewers cost: the speed of training, the API's memory, the time of other requests.

A real daemon whose engine does a fixed amount of work a step, and viewers of its live stream, in
turn without and with them. The turns are short and many, since a shared box computes at another
speed from one ten seconds to the next. Prints one JSON object; the exit status is 1 when steps were
slower than `--least-ratio` of the rate without viewers, or the slowest hundredth of requests while
viewers look on took `--limit-ms`.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psutil

from scripted_service import ROWS, Scripted, scripted_service, write_house

STEPS = 1_000_000


def script_of(work: int) -> dict[str, Any]:
    """A job that computes in every step and runs for longer than anyone looks on."""
    return {"steps": STEPS, "step_seconds": 0, "work": work}


def start_job(client: httpx2.Client) -> str:
    """A job that runs for longer than this looks on."""
    file = client.post("/v1/files", data={"purpose": "fine-tune"}, files=ROWS).json()
    body = {"model": "tiny", "training_file": file["id"]}
    job_id = client.post("/v1/fine_tuning/jobs", json=body).json()["id"]
    while step_of(client, job_id) < 5:
        time.sleep(0.1)
    return str(job_id)


def step_of(client: httpx2.Client, job_id: str) -> int:
    """The newest step that the API knows."""
    job = client.get(f"/v1/fine_tuning/jobs/{job_id}").json()
    assert not job["error"], job["error"]
    return int(job["engine"].get("step") or 0)


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time of a process so far."""
    times = process.cpu_times()
    return times.user + times.system


async def watch(url: str, path: str, seen: list[int], number: int) -> None:
    """One viewer: counts the events that it is sent."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: {where.netloc}\r\n\r\n".encode())
    try:
        while data := await reader.read(1 << 16):
            seen[number] += data.count(b"\nevent: metrics\r")
    finally:
        writer.close()


async def probe(url: str, path: str, taken: list[float]) -> None:
    """Ask for the job twenty times a second; milliseconds of each answer."""
    async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
        while True:
            started = time.perf_counter()
            (await client.get(path)).raise_for_status()
            taken.append(1000 * (time.perf_counter() - started))
            await asyncio.sleep(0.05)


async def look_on(
    url: str, api: psutil.Process, job_id: str, *, viewers: int, seconds: float
) -> dict[str, Any]:
    """Steps a second while so many watch, and what other requests took meanwhile."""
    path = f"/v1/fine_tuning/jobs/{job_id}"
    seen, taken = [0] * viewers, list[float]()
    tasks = [asyncio.create_task(watch(url, f"{path}/events/stream", seen, i))
             for i in range(viewers)]  # fmt: skip
    while not all(seen):  # until everyone is there
        await asyncio.sleep(0.1)
    tasks.append(asyncio.create_task(probe(url, path, taken)))
    with httpx2.Client(base_url=url) as client:
        used = cpu_seconds(api), cpu_seconds(psutil.Process())
        first, started = await asyncio.to_thread(step_of, client, job_id), time.monotonic()
        await asyncio.sleep(seconds)
        last, ended = await asyncio.to_thread(step_of, client, job_id), time.monotonic()
    used = cpu_seconds(api) - used[0], cpu_seconds(psutil.Process()) - used[1]
    failed = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not failed, f"{len(failed)} viewers were dropped"
    return {
        "viewers": viewers,
        "steps_per_second": (last - first) / (ended - started),
        "api_cores": used[0] / (ended - started),
        "viewers_cores": used[1] / (ended - started),
        "events_seen": sum(seen),
        "least_seen": min(seen, default=0),
        "p50_ms": quantile(taken, 0.5),
        "p99_ms": quantile(taken, 0.99),
        "taken_ms": [round(one, 1) for one in taken],
    }


def quantile(values: list[float], share: float) -> float:
    """What that share of the values lies below."""
    return sorted(values)[int(share * len(values))]


def take_turns(
    served: Scripted, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[int]]:
    """What each turn found, and the API's resident bytes before the first and after each."""
    url, api = served.url, psutil.Process(served.process.pid)
    with httpx2.Client(base_url=url, timeout=60) as client:
        job_id = start_job(client)
    turns, rss = [], [api.memory_info().rss]
    for _ in range(options.rounds):
        for viewers in (0, options.viewers):
            turn = look_on(url, api, job_id, viewers=viewers, seconds=options.seconds)
            turns.append(asyncio.run(turn))
            rss.append(api.memory_info().rss)
    return turns, rss


def main() -> int:
    """Turns without and with viewers, interleaved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--viewers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--work", type=int, default=2_000_000, help="of a step; 2e6 is about 50 ms")
    parser.add_argument("--least-ratio", type=float, default=0.9)
    parser.add_argument("--limit-ms", type=float, default=100)
    parser.add_argument("--json", type=Path, help="also write the result there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_house(home := Path(folder), script_of(options.work))
        with scripted_service(home) as served:
            turns, rss = take_turns(served, options)
    without, watched = ([turn for turn in turns if turn["viewers"] == n]
                        for n in (0, options.viewers))  # fmt: skip
    rates = [sum(turn["steps_per_second"] for turn in group) for group in (without, watched)]
    taken = {n: [one for turn in group for one in turn.pop("taken_ms")]
             for n, group in ((0, without), (options.viewers, watched))}  # fmt: skip
    result = {
        "ratio": rates[1] / rates[0],
        "p99_ms": quantile(taken[options.viewers], 0.99),
        "p99_ms_without_viewers": quantile(taken[0], 0.99),
        "p99_ms_of_turns": [round(turn["p99_ms"], 1) for turn in watched],
        "api_rss_bytes": {"before": rss[0], "after_each_turn": rss[1:]},
        "turns": turns,
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
    }
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(result["ratio"] < options.least_ratio or result["p99_ms"] > options.limit_ms)


if __name__ == "__main__":
    sys.exit(main())
