"""The daemon over HTTP in a process of its own, with a scripted engine in its worker.

`python -m scripted_service DATA_DIR MODELS_DIR PORT` prints its URL as JSON, as `headrace serve`
does. The script of the engine is `script.json` in the data directory (`fake_engine.py`).
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from headrace.service.app import create_app
from headrace.service.client import Client
from headrace.service.daemon import Daemon
from headrace.service.server import address, listen, run
from headrace.service.settings import Settings
from headrace.service.worker import WorkerOptions

ROW = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
ROWS: Mapping[str, Any] = {"file": ("rows.jsonl", ROW * 50)}


@dataclass(frozen=True, slots=True)
class Scripted:
    """A running API process and where it listens."""

    url: str
    process: subprocess.Popen[bytes]


def write_house(home: Path, script: Mapping[str, Any]) -> None:
    """What `scripted_service` needs: the script and a tiny model."""
    from tiny import make_tiny_llama  # not in the served process: it loads torch

    (home / "data").mkdir()
    (home / "data" / "script.json").write_text(json.dumps(script))
    make_tiny_llama(home / "models" / "tiny", tied=True, seed=3, layers=2)


@contextmanager
def scripted_service(
    home: Path, *, port: int = 0, environment: Mapping[str, str] | None = None
) -> Iterator[Scripted]:
    """The process over what `write_house` made; SIGTERM at the end, unless it is gone by then."""
    command = [sys.executable, "-m", "scripted_service", str(home / "data"), str(home / "models")]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    variables = {**os.environ, "PYTHONPATH": path, **(environment or {})}
    with (
        (home / "api.log").open("ab") as log,
        subprocess.Popen(
            [*command, str(port)], stdout=subprocess.PIPE, stderr=log, env=variables
        ) as process,
    ):
        assert process.stdout
        try:
            first = process.stdout.readline()
            assert first, (home / "api.log").read_text()
            yield Scripted(json.loads(first)["url"], process)
        finally:
            process.terminate()
            process.wait(60)


def create(url: str) -> str:
    """Submit a job on the tiny model; its id."""
    with httpx2.Client(base_url=url, timeout=60) as client:
        file = client.post("/v1/files", data={"purpose": "fine-tune"}, files=ROWS).json()
        body = {"model": "tiny", "training_file": file["id"]}
        return str(client.post("/v1/fine_tuning/jobs", json=body).json()["id"])


def await_(look: Callable[[], Any], seconds: float = 60) -> float:
    """Seconds until `look` is satisfied."""
    started = time.monotonic()
    while not look():
        assert time.monotonic() - started < seconds, "not seen in time"
        time.sleep(0.02)
    return time.monotonic() - started


def answers(url: str) -> bool:
    """Whether the process is there."""
    try:
        return httpx2.get(f"{url}/livez", timeout=2).is_success
    except httpx2.TransportError:
        return False


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def all_events(url: str, job_id: str) -> list[dict[str, Any]]:
    """The whole story, oldest first."""
    with Client(url) as client:
        path = f"/v1/fine_tuning/jobs/{job_id}/events"
        return list(client.call("GET", path, params={"limit": 1000})["data"])[::-1]


def main() -> None:
    """Serve until a signal ends it."""
    data_dir, models_dir = map(Path, sys.argv[1:3])
    settings = Settings(data_dir=data_dir, models_dir=(models_dir,), device="cpu")
    options = WorkerOptions(data_dir=data_dir, engine="fake_engine:run_job")
    daemon = Daemon(settings, worker=options, prepare="fake_engine:prepare")
    with listen("127.0.0.1", int(sys.argv[3])) as sock:
        url = address(sock)
        run(
            lambda: create_app(daemon),
            sock,
            on_ready=lambda: print(json.dumps({"url": url}), flush=True),
        )


if __name__ == "__main__":
    main()
