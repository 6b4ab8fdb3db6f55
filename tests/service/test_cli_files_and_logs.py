"""Files, events, plans and job files from the command line, against a scripted daemon."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from command import run
from headrace.service.cli.job_file import read_job_file
from headrace.service.cli.options import _complete_job
from headrace.service.cli.output import CliError, Exit
from scripted_daemon import ScriptedDaemon

JOBS = "/v1/fine_tuning/jobs"
FILE = {"id": "file-1", "filename": "rows.jsonl", "bytes": 1500, "purpose": "fine-tune",
        "created_at": 1_796_000_000}  # fmt: skip


def event(seq: int, kind: str = "message", **changed: Any) -> dict[str, Any]:
    return {"id": f"ftevent-{seq}", "object": "fine_tuning.job.event", "created_at": 1_796_000_000,
            "level": "info", "message": f"event {seq}", "kind": kind, "seq": seq,
            "data": {}} | changed  # fmt: skip


def page(*items: dict[str, Any], more: bool = False) -> dict[str, Any]:
    last = items[-1]["id"] if items else None
    return {"object": "list", "data": list(items), "has_more": more, "last_id": last}


def test_the_log_of_a_job_is_told_oldest_first_without_its_steps(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answer(
        f"GET {JOBS}/ftjob-1/events",
        page(event(5, level="warn"), event(4, "metrics"), more=True),
        page(event(3, "commit"), event(2), event(1)),
    )
    assert run("logs", "ftjob-1", "-n", "2") == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == ["event 2", "warn: event 5"]


def test_what_is_told_again_and_again_is_one_line_of_the_text_and_all_of_it_in_json(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    again = [event(seq, message="importing") for seq in (5, 4, 3)]
    told = page(event(6, message="importing", level="warn"), *again, event(2), event(1))
    daemon.answer(f"GET {JOBS}/ftjob-1/events", told, told)
    assert run("logs", "ftjob-1") == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == [
        "event 1", "event 2", "importing", "warn: importing",
    ]  # fmt: skip
    assert run("logs", "ftjob-1", "--json") == Exit.OK
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_sample_texts_are_told_oldest_first_and_by_prompt(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(step: int, completion: str, ended: str) -> dict[str, Any]:
        text = {"source": "prompt 1", "prompt": "Why [so]?", "completion": completion,
                "ended": ended, "expected": "Never mind."}  # fmt: skip
        return {"id": f"ftevent-{step}", "step_number": step, "samples": [text]}

    daemon.answer(
        f"GET {JOBS}/ftjob-1/samples",
        page(told(20, "Since", "length"), told(10, "Oh.", "stop")),
    )
    assert run("samples", "ftjob-1", "-n", "2") == Exit.OK
    assert capsys.readouterr().out.splitlines() == [
        "step 10, prompt 1", "Why [so]?", "Oh.", "wanted: Never mind.",
        "step 20, prompt 1", "Why [so]?", "Since…", "wanted: Never mind.",
    ]  # fmt: skip


def test_rows_that_stand_out_are_told_with_their_lines(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"row": 6, "file": "t.jsonl", "line": 7, "item": None, "losses": [9.5, None]}
    none: dict[str, Any] = {"count": 0, "rows": []}
    told = {"step_number": 9, "num_rows": 40, "medians": [2.0, 1.5], "below": none,
            "above": {"count": 3, "rows": [row]}, "not_finite": none}  # fmt: skip
    daemon.answer(f"GET {JOBS}/ftjob-1/row_losses", told)
    assert run("rows", "ftjob-1") == Exit.OK
    title, line, more, middle = capsys.readouterr().out.splitlines()
    assert line.split("  ")[0] == "far above" and "t.jsonl, line 7" in line
    assert line.endswith("9.5000, –") and title.startswith("loss")
    assert more == "and 2 more far above"
    assert middle == "the middle row of 40: 2.0000, 1.5000"


def test_rows_and_samples_that_there_are_not_have_the_daemons_reason(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answer(f"GET {JOBS}/ftjob-1/row_losses", {"step_number": None, "reason": "told not to"})
    assert run("rows", "ftjob-1") == Exit.OK
    assert capsys.readouterr().out == "no rows: told not to\n"
    daemon.answer(f"GET {JOBS}/ftjob-1/samples", {**page(), "reason": "asked for none"})
    assert run("samples", "ftjob-1") == Exit.OK
    assert capsys.readouterr().out == "no sample texts: asked for none\n"


def test_a_log_that_is_followed_goes_on_after_what_was_told(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answer(f"GET {JOBS}/ftjob-1/events", page(event(2), event(1)))
    stream = "".join(
        f"id: {one['seq']}\nevent: log\ndata: {json.dumps(one)}\n\n"
        for one in (event(3), event(4, "metrics"))
    )
    daemon.answer(f"GET {JOBS}/ftjob-1/events/stream", stream)
    daemon.answer(f"GET {JOBS}/ftjob-1", {"id": "ftjob-1", "status": "succeeded"})
    assert run("logs", "ftjob-1", "-f", "--json") == Exit.OK
    told = [json.loads(line)["seq"] for line in capsys.readouterr().out.splitlines()]
    assert told == [1, 2, 3]
    asked = [headers for (route, _), headers in zip(daemon.asked, daemon.headers, strict=True)
             if route.endswith("/stream")]  # fmt: skip
    assert asked[0]["last-event-id"] == "2"


def test_files_are_listed_fetched_and_deleted(
    daemon: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answer("GET /v1/files", page(FILE))
    daemon.answer("GET /v1/files/file-1/content", "step,train_loss\n1,2.5\n")
    daemon.answer("DELETE /v1/files/file-1", {"id": "file-1", "deleted": True})
    assert run("files", "list") == Exit.OK
    assert "file-1" in capsys.readouterr().out
    target = tmp_path / "table.csv"
    assert run("files", "get", "file-1", target) == Exit.OK
    assert target.read_text() == "step,train_loss\n1,2.5\n"
    assert run("files", "get", "file-1", target) == Exit.USAGE, "nothing is written over"
    assert run("files", "get", "file-none", tmp_path / "none") == Exit.REFUSED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.csv"]
    assert run("files", "delete", "file-1") == Exit.OK


def test_a_plan_is_asked_for_and_no_job_is_made(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {"object": "fine_tuning.plan", "model": "m", "plan": {"tiers": []}}
    daemon.answer("POST /v1/fine_tuning/plans", plan)
    command = ("submit", "--model", "m", "--train", "file-1", "--plan-only", "--json")
    assert run(*command, "--strategy", "ratel") == Exit.OK
    assert json.loads(capsys.readouterr().out) == plan
    assert [route for route, _ in daemon.asked] == ["POST /v1/fine_tuning/plans"]
    (body,) = daemon.bodies("POST /v1/fine_tuning/plans")
    assert body == {"model": "m", "training_file": "file-1", "strategy": "ratel"}


def test_a_job_file_may_be_yaml(daemon: ScriptedDaemon, tmp_path: Path) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text(
        "model: m\ntraining_file: file-1\nseed: 3\n"
        "method: {type: supervised, supervised: {hyperparameters: {learning_rate: 1e-5}}}\n"
    )
    daemon.answer(f"POST {JOBS}", {"id": "ftjob-1", "status": "queued"})
    assert run("submit", job_file, "--set", "n_epochs=2") == Exit.OK
    (body,) = daemon.bodies(f"POST {JOBS}")
    assert body["method"]["supervised"]["hyperparameters"] == {"learning_rate": 1e-5, "n_epochs": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-5", 1e-5), ("3", 3), ("1.5", 1.5), ("no", "no"), ("true", True), ("on", "on"),
     ("null", None), ("'1'", "1"), ("auto", "auto"), ("[1, 2.0]", [1, 2.0])],
)  # fmt: skip
def test_plain_words_of_yaml_mean_what_people_think(tmp_path: Path, text: str, value: Any) -> None:
    (tmp_path / "job.yml").write_text(f"x: {text}\n")
    assert read_job_file(tmp_path / "job.yml") == {"x": value}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [("a.yaml", "x: [1", "is not YAML"), ("a.yaml", "!!python/object:os.system {}", "is not YAML"),
     ("a.json", "{", "is not JSON"), ("a.yaml", "- 1", "holds a list"),
     ("none.json", None, "cannot read")],
)  # fmt: skip
def test_a_file_that_is_no_job_is_refused_with_the_reason(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(CliError, match=said):
        read_job_file(tmp_path / name)


def test_an_export_that_lies_elsewhere_is_downloaded_whole_or_not_at_all(
    daemon: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    with tarfile.open(tmp_path / "m.tar", "w") as archive:
        archive.add(tmp_path / "m", "ftjob-1")
    job = {"id": "ftjob-1", "status": "succeeded", "fine_tuned_model": "ft:m"}
    daemon.answer(f"GET {JOBS}/ftjob-1", job)
    daemon.answer("GET /v1/models/ft:m", {"id": "ft:m", "path": "/not/here"})
    daemon.answer(f"GET {JOBS}/ftjob-1/export", (tmp_path / "m.tar").read_bytes().decode("latin-1"))
    assert run("export", "ftjob-1", tmp_path / "out" / "mine") == Exit.OK
    assert (tmp_path / "out" / "mine" / "config.json").read_text() == "{}"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    daemon.answer(f"GET {JOBS}/ftjob-1/export", "no archive")
    assert run("export", "ftjob-1", tmp_path / "out" / "other") == Exit.FAILED
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_failed_job_is_resumed_as_a_new_one(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = {"id": "ftjob-1", "status": "failed", "model": "m", "training_file": "file-1"}
    daemon.answer(f"GET {JOBS}/ftjob-1", failed)
    refusal = {"error": {"message": "is failed", "code": "invalid_job_status"}}
    daemon.answer(f"POST {JOBS}/ftjob-1/resume", refusal, status=400)
    daemon.answer(f"POST {JOBS}", {"id": "ftjob-2", "status": "queued"})
    assert run("resume", "ftjob-1") == Exit.OK
    assert daemon.bodies(f"POST {JOBS}") == [
        {"model": "m", "training_file": "file-1", "resume_from": "ftjob-1"}
    ]
    assert "ftjob-2 queued; goes on with the state of ftjob-1" in capsys.readouterr().out


def test_output_to_a_pipe_is_json_unless_text_is_asked_for(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_OUTPUT")
    daemon.answer("GET /v1/files", page(FILE))
    run("files", "list")
    assert json.loads(capsys.readouterr().out) == [FILE]
    run("files", "list", "--text")
    assert capsys.readouterr().out.startswith("file ")
    assert run("status", "ftjob-none") == Exit.REFUSED
    assert json.loads(capsys.readouterr().err)["error"]["exit_code"] == Exit.REFUSED


def test_the_shell_completes_ids_of_jobs_and_never_fails(
    daemon: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [{"id": "ftjob-12", "status": "running"}, {"id": "ftjob-9", "status": "failed"}]
    daemon.answer(f"GET {JOBS}", page(*jobs))
    assert _complete_job("ftjob-1") == [("ftjob-12", "running")]
    monkeypatch.setenv("HEADRACE_URL", "http://127.0.0.1:9")
    assert _complete_job("") == []
