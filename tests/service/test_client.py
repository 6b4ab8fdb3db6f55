"""The client of the command line: requests, errors, the live stream."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.service import client as client_module
from headrace.service.client import Client, Refused, ServerEvent, Unreachable, parse_events
from scripted_daemon import ScriptedDaemon, scripted_daemon

JOB = "/v1/fine_tuning/jobs/ftjob-1"


@pytest.fixture
def daemon() -> Iterator[ScriptedDaemon]:
    with scripted_daemon() as running:
        yield running


def stream(*events: tuple[int, str, Any]) -> str:
    return "".join(f"id: {i}\nevent: {name}\ndata: {json.dumps(d)}\n\n" for i, name, d in events)


def test_parser_reads_ids_names_and_data_and_leaves_out_comments() -> None:
    text = ": ping\n\nid: 7\nevent: metrics\ndata: {\ndata: }\n\ndata: [1]\n\n"
    assert list(parse_events(text.splitlines())) == [
        ServerEvent(id="7", event="metrics", data={}),
        ServerEvent(id="7", event="message", data=[1]),
    ]


def test_parser_keeps_back_an_event_that_was_cut_off() -> None:
    assert list(parse_events(["id: 1", "data: {}"])) == []


def test_refusal_carries_the_envelope_and_the_hint(daemon: ScriptedDaemon) -> None:
    error = {"message": "no such model", "param": "model", "code": "x", "hint": "list them"}
    daemon.answer("POST /v1/fine_tuning/jobs", {"error": error}, status=400)
    with Client(daemon.url) as client, pytest.raises(Refused, match="list them") as caught:
        client.create_job({"model": "m"})
    assert caught.value.status == 400 and caught.value.error["param"] == "model"


def test_answer_of_another_server_is_an_error_and_not_a_crash(daemon: ScriptedDaemon) -> None:
    daemon.answer("GET /status", "<html>", status=502)
    with Client(daemon.url) as client, pytest.raises(Refused, match="is this a Headrace daemon"):
        client.status()


def test_missing_daemon_is_said_with_what_to_do() -> None:
    with Client("http://127.0.0.1:9") as client, pytest.raises(Unreachable, match="headrace serve"):
        client.status()


def test_token_goes_out_as_bearer(daemon: ScriptedDaemon) -> None:
    daemon.answer("GET /status", {})
    with Client(daemon.url, token="secret") as client:
        client.status()
    assert daemon.headers[0]["authorization"] == "Bearer secret"


def test_upload_sends_name_purpose_and_content(daemon: ScriptedDaemon, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": []}\n')
    daemon.answer("POST /v1/files", {"id": "file-1"})
    with Client(daemon.url) as client:
        assert client.upload(rows)["id"] == "file-1"
    body = daemon.asked[0][1]
    assert b'filename="rows.jsonl"' in body and b"fine-tune" in body and b'"messages"' in body


def test_job_list_follows_the_pages(daemon: ScriptedDaemon) -> None:
    pages = [{"data": [{"id": "a"}], "has_more": True}, {"data": [{"id": "b"}], "has_more": False}]
    daemon.answer("GET /v1/fine_tuning/jobs", *pages)
    with Client(daemon.url) as client:
        assert [job["id"] for job in client.jobs(limit=5)] == ["a", "b"]


def test_follow_reconnects_after_the_last_event_it_saw(
    daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    first, second = stream((4, "metrics", {"step": 1})), stream((5, "done", {}))
    daemon.answer(f"GET {JOB}/events/stream", first, second)
    daemon.answer(f"GET {JOB}", {"status": "running"}, {"status": "succeeded"})
    with Client(daemon.url) as client:
        assert [event.id for event in client.follow("ftjob-1")] == ["4", "5"]
    assert [h.get("last-event-id") for h in daemon.headers if "stream" in h["accept"]] == [
        None,
        "4",
    ]


def test_follow_gives_up_on_a_daemon_that_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 25))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    with Client("http://127.0.0.1:9") as client, pytest.raises(Unreachable):
        list(client.follow("ftjob-1"))
    assert next(clock) > client_module.RETRY_SECONDS
