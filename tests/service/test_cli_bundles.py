"""`bundle` and `replay`: the same job again from its paper, and an honest word on the weights."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from command import run
from headrace.service.cli.bundles import compare
from headrace.service.cli.output import Exit
from scripted_daemon import ScriptedDaemon

JOBS = "/v1/fine_tuning/jobs"
ROWS = b'{"text": "rows"}\n'
SHA256 = hashlib.sha256(ROWS).hexdigest()


def bundle(**changes: Any) -> dict[str, Any]:
    """What a daemon tells of a job."""
    files = [
        {"name": "model.safetensors", "sha256": "aa"},
        {"name": "config.json", "sha256": "of another place"},
    ]
    return {
        "object": "fine_tuning.job.bundle",
        "format": 1,
        "job": {"id": "ftjob-1"},
        "request": {"model": "m", "training_file": "file-then", "seed": 5},
        "numerics_key": {"seed": 5},
        "surroundings": {"device": "cpu"},
        "data": [{"param": "training_file", "filename": "rows.jsonl", "sha256": SHA256}],
        "exports": [{"format": "hf", "files": files}],
        **changes,
    }


def other_weights() -> list[dict[str, Any]]:
    return [{"format": "hf", "files": [{"name": "model.safetensors", "sha256": "bb"}]}]


def scripted(daemon: ScriptedDaemon, again: dict[str, Any], *, files: list[Any]) -> None:
    """A daemon that holds these files, and makes a job that ends as `again` tells."""
    done = {"id": "ftjob-2", "status": "succeeded", "model": "m", "fine_tuned_model": "ft:m"}
    daemon.answer("GET /v1/files", {"data": files})
    daemon.answer("POST /v1/files", {"id": "file-new"})
    daemon.answer(f"POST {JOBS}", {"id": "ftjob-2", "status": "queued"})
    daemon.answer(f"GET {JOBS}/ftjob-2/events/stream", f"event: done\ndata: {json.dumps(done)}\n\n")
    daemon.answer(f"GET {JOBS}/ftjob-2", done)
    daemon.answer(f"GET {JOBS}/ftjob-2/bundle", again)


def written(tmp_path: Path, told: dict[str, Any]) -> Path:
    path = tmp_path / "job.bundle.json"
    path.write_text(json.dumps(told))
    return path


def test_bundle_writes_what_the_daemon_tells(daemon: ScriptedDaemon, tmp_path: Path) -> None:
    daemon.answer(f"GET {JOBS}/ftjob-1/bundle", bundle())
    assert run("bundle", "ftjob-1", tmp_path / "b.json") == Exit.OK
    assert json.loads((tmp_path / "b.json").read_text()) == bundle()
    assert run("bundle", "ftjob-1", tmp_path / "b.json") == Exit.USAGE


def test_replay_takes_rows_of_the_same_hash_and_finds_the_same_weights(
    daemon: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(daemon, bundle(), files=[{"id": "file-now", "sha256": SHA256}])
    assert run("replay", written(tmp_path, bundle())) == Exit.OK
    assert daemon.bodies(f"POST {JOBS}") == [{"model": "m", "training_file": "file-now", "seed": 5}]
    assert "the same weights, bit for bit, in 1 file" in capsys.readouterr().out


def test_replay_uploads_rows_that_the_daemon_has_not(
    daemon: ScriptedDaemon, tmp_path: Path
) -> None:
    scripted(daemon, bundle(), files=[])
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(ROWS)
    assert run("replay", written(tmp_path, bundle()), "--train", rows) == Exit.OK
    assert daemon.bodies(f"POST {JOBS}")[0]["training_file"] == "file-new"


def test_replay_of_other_rows_is_refused(daemon: ScriptedDaemon, tmp_path: Path) -> None:
    scripted(daemon, bundle(), files=[])
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b"others\n")
    assert run("replay", written(tmp_path, bundle()), "--train", rows) == Exit.USAGE
    assert run("replay", written(tmp_path, bundle())) == Exit.USAGE  # and of none at all
    assert not daemon.bodies(f"POST {JOBS}")


def test_replay_that_makes_other_weights_says_what_else_differs(
    daemon: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = bundle(exports=other_weights(), surroundings={"device": "cuda", "patch": "7"})
    scripted(daemon, again, files=[{"id": "file-now", "sha256": SHA256}])
    assert run("replay", written(tmp_path, bundle())) == Exit.FAILED
    shown = " ".join(capsys.readouterr().out.split())
    assert "other weights: hf/model.safetensors differ" in shown
    assert "surroundings.device was cpu, now cuda" in shown
    assert "surroundings.patch was None, now 7" in shown


def test_without_weights_on_paper_nothing_is_the_same() -> None:
    found = compare(bundle(exports=[]), bundle())
    assert not found["same_weights"] and found["files"] == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read the bundle"),
        ("[]", "is no bundle"),
        ('{"object": "fine_tuning.job.bundle"}', "is of format None; this version reads 1"),
        (json.dumps(bundle(format=2)), "is of format 2; this version reads 1"),
        (json.dumps(bundle(request=None)), "is damaged: it has no request"),
        (json.dumps(bundle())[:-2], "cannot read the bundle"),
        ("[" * 100_000, "cannot read the bundle"),
    ],
)
def test_a_file_that_is_no_bundle_is_refused(
    tmp_path: Path, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "b.json"
    path.write_text(content)
    assert run("replay", path) == Exit.USAGE
    assert message in " ".join(capsys.readouterr().err.split())
