"""`headrace status` on a terminal, and JSON where it is read by programs."""

import json
from itertools import pairwise
from typing import Any

import pytest

from command import run
from headrace.service.cli.output import Exit
from headrace.service.cli.status_view import show_job, show_status
from scripted_daemon import ScriptedDaemon

JOB: dict[str, Any] = {
    "id": "ftjob-1", "status": "running", "model": "smollm2", "training_file": "file-1",
    "created_at": 1_700_000_000, "seed": 7, "result_files": [],
    "method": {"type": "supervised", "supervised": {"hyperparameters": {
        "n_epochs": 3, "max_steps": None, "adapter": {"type": "lora", "rank": 8}}}},
    "engine": {"step": 3, "total_steps": 9, "loss": 1.23456, "tokens_per_s": 812.3, "eta_s": 75,
               "bottleneck": "reading the drive", "plan": {"slots": 3}, "warnings": ["mind that"],
               "settings": {"device": "cpu", "limits": {"max_hours": 2}, "trackers": [],
                            "export": [{"format": "gguf", "dtype": "q8_0"}]}},
}  # fmt: skip
STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "uptime_seconds": 3700,
    "not_ready": ["the worker is starting"],
    "worker": {"state": "busy", "job_id": "ftjob-1", "restarts": 2, "last_death": "signal 9"},
    "device": {"type": "cuda", "gpus": [{
        "name": "H200", "total_bytes": 141 * 10**9, "free_bytes": 41 * 10**9, "busy_share": 0.5,
        "temperature_celsius": None,
    }]},
    "memory": {"total_bytes": 64 * 10**9, "free_bytes": 60 * 10**9},
    "budgets": {"device_bytes": None, "host_bytes": 20 * 10**9},
    "storage": [
        {"path": "/mnt/a", "active": "direct", "free_bytes": 10**12, "total_bytes": 2 * 10**12,
         "health": {"percentage_used": 3, "temperature_celsius": 41},
         "calibration": {"mixed_bytes_per_second": 5e9},
         "traffic": {"read_bytes_per_second": 2e9, "write_bytes_per_second": None}},
        {"path": "/mnt/b", "active": "buffered", "free_bytes": 5, "total_bytes": 10,
         "health": None, "calibration": None, "traffic": None},
    ],
    "disk": {"path": "/data", "free_bytes": 1, "total_bytes": 2},
    "running": JOB,
    "queue": [{"id": "ftjob-2", "model": "llama", "priority": 5, "position": 1,
               "estimated_start": None, "estimated_finish": 1_700_000_000, "waits_for": "ftjob-1"}],
    "jobs": {"running": 1, "failed": 2},
}  # fmt: skip


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


def test_people_read_the_box_the_running_job_and_the_queue(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_status(STATUS)
    shown = lines(capsys)
    assert shown[0] == (
        "Headrace 0.1.0, up 1:01:40; worker busy, with ftjob-1, started again 2 times, "
        "last died of: signal 9"
    )
    assert shown[1] == "no job can run now: the worker is starting"
    for line in (
        "GPU 100 GB of 141 GB H200, 50% busy, no budget",
        "memory 4 GB of 64 GB jobs get 20 GB",
        "volume /mnt/a 1 TB of 2 TB direct, can do 5 GB/s mixed, reads 2 GB/s now, 3 % worn, 41 °C",
        "volume /mnt/b 5 B of 10 B buffered",
        "data /data 1 B of 2 B journal, uploads, exports",
        "ftjob-1 smollm2 3/9 1.2346 812.3 1:15 reading the drive",
        "jobs: 1 running, 2 failed",
    ):
        assert line in shown
    (waits,) = [line for line in shown if "ftjob-2" in line]
    assert waits.startswith("1 ftjob-2 llama 5 – 2023-11-1")
    assert not any("{" in line for line in shown)


def test_a_box_without_a_job_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    show_status({**STATUS, "running": None, "queue": [], "jobs": {}, "not_ready": [],
                 "device": {"type": "cpu", "gpus": []}})  # fmt: skip
    shown = lines(capsys)
    assert {"no job runs", "none waits", "device cpu the driver shows no GPU"} <= {*shown}


def test_what_an_answer_has_not_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    show_status({"worker": {"pid": 17}})
    assert "nothing is known of the box" in lines(capsys)
    show_job({"id": "ftjob-1", "status": "queued"})
    assert "status queued" in lines(capsys)


def test_people_read_a_job_without_what_has_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    show_job(JOB)
    shown = lines(capsys)
    for line in (
        "status running", "step 3/9", "left 1:15", "held up by reading the drive",
        "method supervised adapter.type lora", "n_epochs 3 adapter.rank 8",
        "seed 7 export.0.format gguf", "device cpu export.0.dtype q8_0", "limits.max_hours 2",
        "– mind that", "training rows file-1",
    ):  # fmt: skip
        assert line in shown
    titles = [line for before, line in pairwise(shown) if not before]
    assert titles == ["Progress", "Files", "Learning", "Run", "Warnings", "More"]
    assert max(map(len, shown)) < 80, "no line is a list of everything"
    assert not any("slots" in line or "None" in line or "{" in line for line in shown)


def test_a_paused_job_is_held_up_by_nothing_and_says_how_it_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_job({**JOB, "status": "paused"})
    shown = lines(capsys)
    assert f"go on headrace resume {JOB['id']}" in shown
    assert not any(line.startswith("held up by") for line in shown)


def test_programs_get_json_by_themselves_and_people_text(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.answer("GET /status", STATUS)
    monkeypatch.delenv("HEADRACE_OUTPUT", raising=False)
    assert run("status") == Exit.OK  # to a pipe, as capsys is one
    assert json.loads(capsys.readouterr().out) == STATUS
    monkeypatch.setattr("headrace.service.cli.output.sys.stdout.isatty", lambda: True)
    assert run("status") == Exit.OK
    assert "held up by" in capsys.readouterr().out
    assert run("status", "--json") == Exit.OK
    assert json.loads(capsys.readouterr().out) == STATUS
