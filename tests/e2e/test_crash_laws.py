"""Whoever dies, and however: what people are told afterwards is true, and told once."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import pytest

from headrace.service.client import Client, ServerEvent
from scripted_service import (
    Scripted,
    all_events,
    answers,
    await_,
    create,
    free_port,
    scripted_service,
    write_house,
)

STEPS = 80
SLOW = {"steps": 3, "step_seconds": 60}
AT_ONCE = 20  # seconds that a busy box may take for it; a step, or patience with a hang, takes 60


def test_a_killed_api_comes_back_with_the_truth_and_no_event_is_lost_or_doubled(
    tmp_path: Path,
) -> None:
    write_house(tmp_path, {"steps": STEPS, "step_seconds": 0.05})
    port, seen = free_port(), list[ServerEvent]()
    with scripted_service(tmp_path, port=port) as first:
        job_id = create(first.url)
        viewer = Client(first.url)
        watcher = threading.Thread(target=lambda: seen.extend(viewer.follow(job_id)))
        with viewer:
            watcher.start()
            await_(lambda: viewer.job(job_id)["engine"].get("step", 0) >= 20)
            first.process.kill()
            first.process.wait()
            started = time.monotonic()
            with scripted_service(tmp_path, port=port) as second:
                await_(lambda: answers(second.url))
                status = viewer.job(job_id)["status"]
                back = time.monotonic() - started
                watcher.join(60)
                story = all_events(second.url, job_id)
    assert status in ("running", "queued"), status
    assert back < max(AT_ONCE, 4 * loading_seconds()), back
    numbers = [int(event.id) for event in seen if event.event not in ("snapshot", "done")
               and event.id and event.event != "tier"]  # fmt: skip
    assert numbers == sorted(set(numbers)), "out of order or doubled"
    told = [event.data["step"] for event in seen if event.event == "metrics"]
    assert sorted(set(told)) == list(range(told[0], STEPS + 1)), "a step was never told"
    assert [e["step"] for e in story if e["type"] == "metrics"] == list(range(1, STEPS + 1))
    assert {e["seq"] for e in story} >= set(numbers[-40:]), "what was told last is not kept"
    assert seen[-1].event == "done" and seen[-1].data["status"] == "succeeded"


def loading_seconds() -> float:
    """How long it takes at this moment to load the code: on a busy machine, more than a second."""
    started = time.monotonic()
    path = os.pathsep.join(entry for entry in sys.path if entry)
    command = [sys.executable, "-c", "import headrace.service.app"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
    return time.monotonic() - started


def test_the_death_of_a_worker_is_told_at_once_and_the_job_goes_on(tmp_path: Path) -> None:
    steps = 40
    write_house(tmp_path, {"steps": steps, "step_seconds": 0.2})
    with scripted_service(tmp_path) as served, Client(served.url) as client:
        job_id = create(served.url)
        await_(lambda: client.job(job_id)["engine"].get("step", 0) >= 5)
        os.kill(client.status()["worker"]["pid"], signal.SIGKILL)

        def is_told() -> bool:
            return any("SIGKILL" in event["message"] for event in all_events(served.url, job_id))

        assert await_(is_told) < AT_ONCE
        await_(lambda: client.job(job_id)["status"] == "succeeded")
        events = all_events(served.url, job_id)
        told = [event["step"] for event in events if event["type"] == "metrics"]
        assert told == list(range(1, steps + 1)), events


def in_a_long_step(served: Scripted) -> int:
    """Let a job begin a step of a minute; the worker's pid."""
    job_id = create(served.url)
    with Client(served.url) as client:
        await_(lambda: client.job(job_id)["engine"].get("phase") == "training")
        return int(client.status()["worker"]["pid"])


def test_a_second_sigterm_ends_the_daemon_at_once(tmp_path: Path) -> None:
    write_house(tmp_path, SLOW)
    with scripted_service(tmp_path) as served:
        worker = in_a_long_step(served)
        try:
            served.process.terminate()
            answer = httpx2.Response(200)
            for _ in range(50):
                answer = httpx2.get(f"{served.url}/readyz", timeout=5)
                if answer.status_code == 503:
                    break
                time.sleep(0.1)
            assert answer.status_code == 503 and "stopping" in answer.json()["error"]["message"]
            assert served.process.poll() is None, "it waits for the step"
            served.process.terminate()
            assert served.process.wait(AT_ONCE) == 128 + signal.SIGTERM
        finally:
            os.killpg(worker, signal.SIGKILL)


def test_viewers_see_how_a_daemon_stops(tmp_path: Path) -> None:
    write_house(tmp_path, {"steps": 500, "step_seconds": 0.5})
    with scripted_service(tmp_path) as served, Client(served.url) as client:
        job_id = create(served.url)
        await_(lambda: client.job(job_id)["engine"].get("step", 0) >= 1)
        told: list[ServerEvent] = []
        stream = client.stream(job_id)
        told.append(next(stream))
        served.process.terminate()
        with pytest.raises(Exception, match="no daemon answers"):
            told.extend(stream)
        moves = [event.data["data"]["status"] for event in told if event.event == "status"]
        assert moves == ["queued"], "the job waits for the next start"
        assert served.process.wait(60) == -signal.SIGTERM


def test_systemd_is_told_of_start_life_and_end(tmp_path: Path) -> None:
    write_house(tmp_path, SLOW)
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(30)
        environment = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "400000"}
        with scripted_service(tmp_path, environment=environment) as served:
            assert systemd.recv(4096).decode().startswith("READY=1\nSTATUS=worker ")
            worker = in_a_long_step(served)
            await_(lambda: "ftjob-" in systemd.recv(4096).decode())
            served.process.terminate()
            await_(lambda: systemd.recv(4096).decode().startswith("STOPPING=1"))
            while "finishing the step in hand: ftjob-" not in (said := systemd.recv(4096).decode()):
                pass
            assert "WATCHDOG=1" in said and "EXTEND_TIMEOUT_USEC=60000000" in said
            os.killpg(worker, signal.SIGKILL)
