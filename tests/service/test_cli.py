"""The command line against a scripted daemon: what it sends, prints and exits with."""

import hashlib
import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from command import run
from headrace.engine import STRATEGIES, MemoryGone, NotFinite, SettingsChanged
from headrace.service.cli.output import Exit, human_bytes, human_seconds
from headrace.service.settings import Settings
from scripted_daemon import ScriptedDaemon

JOBS = "/v1/fine_tuning/jobs"
JOB = {"id": "ftjob-1", "status": "queued", "model": "m", "engine": {"step": 3, "total_steps": 9}}


def events(*named: tuple[str, dict[str, Any]]) -> str:
    lines = (f"id: {i}\nevent: {n}\ndata: {json.dumps(d)}\n\n" for i, (n, d) in enumerate(named))
    return "".join(lines)


def test_help_imports_neither_torch_nor_transformers_nor_the_server() -> None:
    program = (
        "import sys\nfrom headrace.service.__main__ import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'fastapi', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    ["serve", "train", "convert", "submit", "watch", "jobs", "status", "cancel", "pause", "resume",
     "export", "bundle", "replay", "free", "models", "token create", "token list", "token revoke",
     "doctor", "fsck", "data check", "bench step"],
)  # fmt: skip
def test_every_command_has_help_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command.split(), "--help") == Exit.OK
    shown = capsys.readouterr().out
    assert "--json" in shown and "default: text" not in shown


def test_serve_refuses_a_models_directory_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "models"
    code = run("serve", "--port", "0", "--data-dir", tmp_path / "data", "--models-dir", missing)
    assert code == Exit.REFUSED
    assert f"models directory {missing} is not there" in capsys.readouterr().err.replace("\n", " ")


def test_version_is_told_where_nothing_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.service.status.version", _not_installed)
    assert run("--version") == Exit.OK
    assert capsys.readouterr().out == "headrace 0+checkout\n"


def _not_installed(name: str) -> str:
    raise PackageNotFoundError(name)


def test_models_lists_what_a_job_can_start_from(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"id": "tiny", "object": "model", "owned_by": "local", "path": "/models/tiny"}
    daemon.answer("GET /v1/models", {"object": "list", "data": [model]})
    assert run("models") == Exit.OK
    assert "tiny" in capsys.readouterr().out
    assert run("models", "--json") == Exit.OK
    assert json.loads(capsys.readouterr().out) == [model]


@pytest.mark.parametrize(("freed", "told"), [(True, "its space is free"), (False, "held no space")])
def test_free_says_whether_there_was_anything(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str], freed: bool, told: str
) -> None:
    daemon.answer(f"POST {JOBS}/ftjob-1/free", {"id": "ftjob-1", "freed": freed})
    assert run("free", "ftjob-1") == Exit.OK
    assert told in capsys.readouterr().out


def test_submit_names_columns(daemon: ScriptedDaemon) -> None:
    daemon.answer(f"POST {JOBS}", JOB)
    columns = ("--column", "prompt=question", "--column", "completion=answer")
    assert run("submit", "--model", "m", "--train", "file-9", *columns) == Exit.OK
    (body,) = daemon.bodies(f"POST {JOBS}")
    assert body["dataset"] == {"columns": {"prompt": "question", "completion": "answer"}}


def test_submit_uploads_local_rows_and_sends_the_settings(
    daemon: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.joinpath("rows.jsonl").write_text("{}\n")
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps({"model": "m", "training_file": "rows.jsonl", "seed": 1}))
    daemon.answer("GET /v1/files", {"data": []})
    daemon.answer("POST /v1/files", {"id": "file-9"})
    daemon.answer(f"POST {JOBS}", JOB)
    assert run("submit", job_file, "--seed", "7", "--set", "learning_rate=1e-4", "--json") == 0
    hyperparameters = {"learning_rate": 1e-4}
    assert daemon.bodies(f"POST {JOBS}") == [
        {
            "model": "m",
            "training_file": "file-9",
            "seed": 7,
            "method": {
                "type": "supervised",
                "supervised": {"hyperparameters": hyperparameters},
            },
        }
    ]
    assert json.loads(capsys.readouterr().out) == JOB


def test_rows_that_the_daemon_holds_are_not_uploaded_again(
    daemon: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n")
    digest = hashlib.sha256(rows.read_bytes()).hexdigest()
    held: dict[str, Any] = {"id": "file-9", "filename": "rows.jsonl", "sha256": digest,
                            "purpose": "fine-tune", "expires_at": None}  # fmt: skip
    changes: list[dict[str, Any]] = [
        {"filename": "other.jsonl"}, {"sha256": "0" * 64}, {"expires_at": 1_900_000_000},
        {"purpose": "fine-tune-results"},
    ]  # fmt: skip
    others = [{**held, "id": f"file-{i}", **changed} for i, changed in enumerate(changes)]
    daemon.answer("GET /v1/files", {"data": [*others, held]}, {"data": others})
    daemon.answer("POST /v1/files", {"id": "file-new"})
    daemon.answer(f"POST {JOBS}", JOB)
    for wanted, uploads, said in (
        ("file-9", 0, "rows.jsonl is file-9 already"),
        ("file-new", 1, ""),
    ):
        assert run("submit", "--model", "m", "--train", rows, "--json") == Exit.OK
        assert daemon.bodies(f"POST {JOBS}")[-1]["training_file"] == wanted
        assert [route for route, _ in daemon.asked].count("POST /v1/files") == uploads
        told = capsys.readouterr()
        assert said in told.err and bool(told.err) == bool(said)
        assert json.loads(told.out) == JOB


def test_submit_on_preferences_sends_their_method_and_beta(
    daemon: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answer(f"POST {JOBS}", JOB)
    command = ("submit", "--model", "m", "--train", "file-1")
    assert run(*command, "--method", "dpo", "--beta", "0.2", "--set", "n_epochs=1") == Exit.OK
    (body,) = daemon.bodies(f"POST {JOBS}")
    assert body["method"] == {
        "type": "dpo",
        "dpo": {"hyperparameters": {"n_epochs": 1, "beta": 0.2}},
    }
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps({"method": {"type": "dpo"}}))
    capsys.readouterr()
    assert run("submit", job_file, *command[1:], "--method", "supervised") == Exit.USAGE
    assert "the job file says dpo" in capsys.readouterr().err


def test_submit_says_which_file_is_missing(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("submit", "--model", "m", "--train", "nowhere.jsonl") == Exit.USAGE
    assert "nowhere.jsonl" in capsys.readouterr().err
    assert daemon.asked == []


def test_job_file_that_is_no_json_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "job.json"
    bad.write_text("{")
    assert run("submit", bad) == Exit.USAGE
    assert f"{bad} is not JSON" in capsys.readouterr().err


def test_no_daemon_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_URL", "http://127.0.0.1:9")
    assert run("jobs") == Exit.UNREACHABLE
    assert "headrace serve" in capsys.readouterr().err


def test_refusal_is_json_on_standard_error_when_asked(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"message": "job ftjob-1 is over", "param": None, "code": "illegal_move"}
    daemon.answer(f"POST {JOBS}/ftjob-1/cancel", {"error": error}, status=400)
    assert run("cancel", "ftjob-1", "--json") == Exit.REFUSED
    shown = json.loads(capsys.readouterr().err)["error"]
    assert shown["message"] == "job ftjob-1 is over" and shown["exit_code"] == Exit.REFUSED


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_verbs_reach_their_route(daemon: ScriptedDaemon, verb: str) -> None:
    daemon.answer(f"POST {JOBS}/ftjob-1/{verb}", JOB)
    assert run(verb, "ftjob-1") == Exit.OK


def test_pause_of_a_running_job_says_that_its_step_comes_first(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answer(f"POST {JOBS}/ftjob-1/pause", {**JOB, "status": "running"})
    run("pause", "ftjob-1")
    assert "pause follows when the step in hand is finished" in capsys.readouterr().out


def test_refusal_for_want_of_a_token_says_where_to_put_it(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"message": "No token was given.", "code": "missing_token"}
    daemon.answer(f"GET {JOBS}", {"error": error}, status=401)
    assert run("jobs") == Exit.REFUSED
    assert "HEADRACE_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "way"),
    [
        ("running", "headrace watch ftjob-1"),
        ("paused", "headrace resume ftjob-1"),
        ("failed", "headrace resume ftjob-1"),
        ("cancelled", "Submit it again"),
    ],
)
def test_an_export_that_is_not_there_says_what_leads_to_one(
    status: str, way: str, daemon: ScriptedDaemon, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    daemon.answer(f"GET {JOBS}/ftjob-1", {**JOB, "status": status, "fine_tuned_model": None})
    assert run("export", "ftjob-1", tmp_path / "mine") == Exit.REFUSED
    told = capsys.readouterr().err
    assert way in told and "--checkpoint" in told


def test_export_of_a_checkpoint_that_is_not_there_says_which_are(
    daemon: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of another kind is none either, even where there is one of that name."""
    daemon.answer(f"GET {JOBS}/ftjob-1", {**JOB, "status": "succeeded"})
    daemon.answer("GET /v1/models/base", {"id": "base", "path": str(tmp_path)})
    held = {"id": "ftckpt_1", "step_number": 5, "fine_tuned_model_checkpoint": "ft:m:5"}
    for found, has in (([held], "it has, newest first: ftckpt_1 (step 5)"), ([], "it has none")):
        daemon.answer(f"GET {JOBS}/ftjob-1/checkpoints", {"data": found})
        for name in ("nope", "base"):
            target = tmp_path / "copy"
            code = run("export", "ftjob-1", target, "--checkpoint", name)
            said = " ".join(capsys.readouterr().err.split())
            assert code == Exit.REFUSED and not target.exists()
            assert f"job ftjob-1 has no checkpoint '{name}'; {has}" in said


@pytest.mark.parametrize("name", ["ftckpt_1", "ft:m:5"])
def test_a_checkpoint_is_exported_by_id_or_name(
    name: str, daemon: ScriptedDaemon, tmp_path: Path
) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "config.json").write_text("{}")
    daemon.answer(f"GET {JOBS}/ftjob-1", JOB)
    held = {"id": "ftckpt_1", "step_number": 5, "fine_tuned_model_checkpoint": "ft:m:5"}
    daemon.answer(f"GET {JOBS}/ftjob-1/checkpoints", {"data": [held]})
    daemon.answer("GET /v1/models/ft:m:5", {"id": "ft:m:5", "path": str(tmp_path / "5")})
    assert run("export", "ftjob-1", tmp_path / "copy", "--checkpoint", name) == Exit.OK
    assert (tmp_path / "copy" / "config.json").read_text() == "{}"


def test_status_keeps_to_what_people_read_and_is_no_wider_than_its_values(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = {"step": 3, "plan": {"slots": 3}, "bottleneck": "waits " * 50}
    daemon.answer(f"GET {JOBS}/ftjob-1", {**JOB, "status": "running", "engine": engine})
    run("status", "ftjob-1")
    shown = capsys.readouterr().out
    assert "held up by" in shown and "slots" not in shown
    assert min(map(len, shown.splitlines())) < 40


def test_jobs_and_status_show_the_step(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.answer(f"GET {JOBS}", {"data": [JOB], "has_more": False})
    daemon.answer(f"GET {JOBS}/ftjob-1", JOB)
    daemon.answer("GET /status", {"worker": {"pid": 17}})
    assert run("jobs") == run("status", "ftjob-1") == run("status") == Exit.OK
    shown = capsys.readouterr().out
    assert shown.count("3/9") == 2 and "worker" in shown


def watched(daemon: ScriptedDaemon, end: dict[str, Any]) -> None:
    metrics = {"message": "Step 4/9", "data": {"step": 4, "loss": 1.5, "tokens_per_s": 80}}
    stream = events(("snapshot", JOB), ("metrics", metrics), ("done", {**JOB, **end}))
    daemon.answer(f"GET {JOBS}/ftjob-1/events/stream", stream)
    daemon.answer(f"GET {JOBS}/ftjob-1", JOB, {**JOB, **end})


@pytest.mark.parametrize(
    ("end", "code", "sentence"),
    [
        ({"status": "succeeded", "fine_tuned_model": "ft:m"}, Exit.OK, "succeeded: ft:m"),
        ({"status": "failed", "error": {"message": "disk full"}}, Exit.FAILED, "disk full"),
        ({"status": "cancelled"}, Exit.UNFINISHED, "cancelled"),
    ],
)
def test_watch_shows_steps_and_exits_with_the_outcome(
    daemon: ScriptedDaemon,
    capsys: pytest.CaptureFixture[str],
    end: dict[str, Any],
    code: Exit,
    sentence: str,
) -> None:
    watched(daemon, end)
    assert run("watch", "ftjob-1") == code
    shown = capsys.readouterr().out
    assert "step 4/9" in shown and "loss 1.5000" in shown and sentence in shown


def test_watch_as_json_prints_one_event_a_line(
    daemon: ScriptedDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    watched(daemon, {"status": "succeeded"})
    assert run("watch", "ftjob-1", "--json") == Exit.OK
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["snapshot", "metrics", "done"]


def finished(daemon: ScriptedDaemon, export_dir: Path) -> None:
    daemon.answer(f"GET {JOBS}/ftjob-1", {**JOB, "status": "succeeded", "fine_tuned_model": "ft:m"})
    daemon.answer("GET /v1/models/ft:m", {"id": "ft:m", "path": str(export_dir)})


def test_export_copies_the_model_whole(daemon: ScriptedDaemon, tmp_path: Path) -> None:
    made = tmp_path / "export"
    made.mkdir()
    made.joinpath("config.json").write_text("{}")
    finished(daemon, made)
    assert run("export", "ftjob-1", tmp_path / "copy") == Exit.OK
    assert tmp_path.joinpath("copy", "config.json").read_text() == "{}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "export"]


def exported(daemon: ScriptedDaemon, folder: Path, **changes: Any) -> None:
    """A job that has made a GGUF file, which was read back."""
    check = {
        "max_abs_diff": 0.0127,
        "rounding_diff": 0.0123,
        "unexplained_diff": 0.0004,
        "tolerance": 0.02,
        "argmax_agreement": 0.99,
        "num_positions": 96,
    }
    made = {"format": "gguf", "path": str(folder), "files": [{"name": "m.gguf"}], "check": check}
    job = {**JOB, "status": "succeeded", "fine_tuned_model": "ft:m"}
    daemon.answer(f"GET {JOBS}/ftjob-1", {**job, "engine": {"exports": [{**made, **changes}]}})
    daemon.answer("GET /v1/models/ft:m", {"id": "ft:m", "path": str(folder)})


def test_export_of_a_gguf_file_copies_it_and_says_what_was_read_back(
    daemon: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.joinpath("m.gguf").write_bytes(b"GGUF")
    exported(daemon, tmp_path)
    assert run("export", "ftjob-1", tmp_path / "deep" / "mine.gguf", "--gguf") == Exit.OK
    assert tmp_path.joinpath("deep", "mine.gguf").read_bytes() == b"GGUF"
    shown = " ".join(capsys.readouterr().out.split())
    assert "moves logits by up to 0.0123, anything else by 0.0004 (0.02 allowed)" in shown
    assert "99.0 % of 96 positions" in shown


def test_export_of_a_gguf_file_comes_over_the_network_where_it_is_not_here(
    daemon: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported(daemon, tmp_path / "elsewhere", check=None)
    daemon.answer(f"GET {JOBS}/ftjob-1/export/gguf", "GGUF afar")
    assert run("export", "ftjob-1", tmp_path / "mine.gguf", "--gguf", "--json") == Exit.OK
    assert tmp_path.joinpath("mine.gguf").read_bytes() == b"GGUF afar"
    assert json.loads(capsys.readouterr().out)["report"]["format"] == "gguf"


def test_export_of_a_gguf_file_that_was_not_made_is_refused(
    daemon: ScriptedDaemon, tmp_path: Path
) -> None:
    finished(daemon, tmp_path)
    assert run("export", "ftjob-1", tmp_path / "m.gguf", "--gguf") == Exit.REFUSED
    both = ("--gguf", "--checkpoint", "c")
    assert run("export", "ftjob-1", tmp_path / "m.gguf", *both) == Exit.USAGE


def test_export_never_overwrites(daemon: ScriptedDaemon, tmp_path: Path) -> None:
    made = tmp_path / "export"
    made.mkdir()
    finished(daemon, made)
    assert run("export", "ftjob-1", tmp_path) == Exit.USAGE


def test_export_of_a_running_job_is_refused(daemon: ScriptedDaemon, tmp_path: Path) -> None:
    daemon.answer(f"GET {JOBS}/ftjob-1", JOB)
    assert run("export", "ftjob-1", tmp_path / "copy") == Exit.REFUSED


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFinite("step 2: not finite"), Exit.FAILED),
        (MemoryGone("the device has 20 MiB left"), Exit.FAILED),
        (SettingsChanged("seed was 1"), Exit.REFUSED),
    ],
)
def test_a_run_that_ends_early_says_why_in_a_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: Exit,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("headrace.service.foreground.train_foreground", fail)
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps({"model": "m", "training_file": "rows.jsonl"}))
    assert run("train", job_file, "--data-dir", tmp_path) == code
    assert str(error) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "in_the_file", "on_the_line"),
    [("state_format", "exact", "sr_q8"), ("strategy", "ratel", "megatrain")],
)
def test_what_the_line_says_stands_in_for_the_jobs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, in_the_file: str, on_the_line: str
) -> None:
    asked: list[str] = []

    def see(body: dict[str, Any], **_: object) -> None:
        asked.append(body[name])
        raise NotFinite("seen")

    monkeypatch.setattr("headrace.service.foreground.train_foreground", see)
    job_file = tmp_path / "job.json"
    job = {"model": "m", "training_file": "rows.jsonl", name: in_the_file}
    job_file.write_text(json.dumps(job))
    option = f"--{name.replace('_', '-')}"
    run("train", job_file, "--data-dir", tmp_path, option, on_the_line)
    run("train", job_file, "--data-dir", tmp_path)
    assert asked == [on_the_line, in_the_file]


@pytest.mark.parametrize("command", ["plan", "submit", "train"])
def test_help_names_every_strategy(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == Exit.OK
    said = capsys.readouterr().out
    assert all(name in said for name in STRATEGIES)


def test_wrong_setting_names_itself(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text("prot = 8400\n")
    assert run("serve", "--config", config) == Exit.USAGE
    assert "prot" in capsys.readouterr().err


def test_example_configuration_is_one_that_the_daemon_takes() -> None:
    example = Path(__file__).parents[2] / "deploy" / "config.example.toml"
    settings = Settings.load(example)
    named = {
        line.split("=")[0].strip("# ") for line in example.read_text().splitlines() if "=" in line
    }
    assert settings.volumes and named == set(Settings.model_fields)


def test_sizes_and_times_read_well() -> None:
    assert [human_bytes(n) for n in (999, 1_610_000_000)] == ["999 B", "1.61 GB"]
    assert [human_seconds(s) for s in (75, 3700)] == ["1:15", "1:01:40"]
