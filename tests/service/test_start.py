"""The start of the daemon: probes are answered before the app is made, all else is by it."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from fakes_daemon import FakeDaemon
from headrace.service.app import create_app
from headrace.service.front import Front
from headrace.service.server import Server, address, listen
from headrace.service.systemd import Notifier

PATIENCE = 60

# What a start loads only when it listens already: the app, and what other commands print with.
LATER = (
    "alembic",
    "fastapi",
    "headrace.engine",
    "httpx2",
    "jinja2",
    "numpy",
    "prometheus_client",
    "rich",
    "sqlalchemy",
    "torch",
    "yaml",
)
PROGRAM = f"""
import sys
from headrace.service import server
from headrace.service.__main__ import main

def run(make_app, sock, *, on_ready):
    print(sorted(set({LATER!r}) & set(sys.modules)))
    make_app()
    print(sorted(set({LATER!r}) & set(sys.modules)))

server.run = run
main(["serve", "--port", "0", "--data-dir", sys.argv[1]])
"""


def test_the_socket_listens_before_the_app_is_imported(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=10 * PATIENCE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.count("\n") == 2, done.stderr
    before, after = done.stdout.splitlines()
    assert before == "[]", f"imported before the socket listens: {before}"
    assert "fastapi" in after and "headrace.engine" in after, "the names above say nothing"
    assert "torch" not in after


@dataclass(frozen=True, slots=True)
class Starting:
    """A server whose app is made when `go` is set, or fails to be with what is in `failure`."""

    client: httpx2.Client
    server: Server
    ready: threading.Event
    go: threading.Event = field(default_factory=threading.Event)
    failure: list[Exception] = field(default_factory=list)
    ended: "Future[None]" = field(default_factory=Future)

    def wait_for_a_request(self) -> None:
        """Until the server has one in hand that is not answered yet."""
        until = time.monotonic() + PATIENCE
        while not self.server.server_state.tasks:
            assert time.monotonic() < until
            time.sleep(0.01)


@contextmanager
def starting(tmp_path: Path) -> Iterator[Starting]:
    with (
        listen("127.0.0.1", 0) as sock,
        httpx2.Client(base_url=address(sock), timeout=PATIENCE) as client,
    ):

        def make_app() -> FastAPI:
            assert held.go.wait(PATIENCE)
            if held.failure:
                raise held.failure[0]
            return create_app(FakeDaemon(tmp_path))

        ready = threading.Event()
        server = Server(make_app, ready.set, Notifier(None))
        held = Starting(client, server, ready)

        def serve() -> None:
            try:
                asyncio.run(server.serve([sock]))
                held.ended.set_result(None)
            except BaseException as error:
                held.ended.set_exception(error)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield held
        finally:
            held.go.set()
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()


def test_probes_are_answered_while_the_app_is_made_and_the_rest_when_it_is(tmp_path: Path) -> None:
    with starting(tmp_path) as start, ThreadPoolExecutor(1) as waiting:
        alive = start.client.get("/livez")
        assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
        for path in ("/readyz", "/healthz"):
            answer = start.client.get(path)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (503, "not_ready")
            assert error["reasons"] == ["the daemon is starting"]
            assert answer.headers["x-request-id"].startswith("req_")
        jobs = waiting.submit(start.client.get, "/v1/fine_tuning/jobs", timeout=PATIENCE)
        assert start.client.get("/livez").is_success
        assert not jobs.done() and not start.ready.is_set()

        start.go.set()
        assert jobs.result(PATIENCE).json()["data"] == []
        assert start.ready.is_set()
        assert start.client.get("/readyz").json() == {"status": "ok"}
        same = ("content-length", "content-type")
        now = start.client.get("/livez")
        assert now.content == alive.content
        assert [now.headers[name] for name in same] == [alive.headers[name] for name in same]
    assert start.ended.result(0) is None


def test_a_start_that_fails_is_told_to_who_waits_and_raised(tmp_path: Path) -> None:
    with starting(tmp_path) as start, ThreadPoolExecutor(1) as waiting:
        jobs = waiting.submit(start.client.get, "/v1/fine_tuning/jobs", timeout=PATIENCE)
        start.wait_for_a_request()
        start.failure.append(OSError("the drive is gone"))
        start.go.set()
        answer = jobs.result(PATIENCE)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")
        assert "its start failed" in answer.json()["error"]["message"]
        with pytest.raises(OSError, match="the drive is gone"):
            start.ended.result(PATIENCE)
        assert not start.ready.is_set()


def test_after_a_failed_start_no_probe_says_that_it_starts() -> None:
    async def asked(path: str) -> tuple[int, dict[str, Any]]:
        front, sent = Front(), []
        front.give_up()

        async def send(message: Any) -> None:
            sent.append(message)

        await front({"type": "http", "method": "GET", "path": path}, no_body, send)
        return sent[0]["status"], json.loads(sent[1]["body"])["error"]

    async def no_body() -> Any:
        raise AssertionError("a probe has no body")

    for path in ("/livez", "/readyz", "/healthz"):
        status, error = asyncio.run(asked(path))
        assert (status, error["code"]) == (503, "not_ready")
        assert "its start failed" in error["message"] and error["hint"]
