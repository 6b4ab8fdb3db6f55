"""`data check` and a job go by the same rules: every count of their reports is the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from command import run
from headrace.engine import RunEvent
from headrace.service.cli.output import Exit
from headrace.service.foreground import find_sources
from headrace.service.job_spec import prepare_request, resolve_job
from headrace.service.preparation import prepare_job
from headrace.service.schemas import parse_create
from headrace.service.settings import Settings
from headrace.service.site import Site
from tiny import make_tiny_llama

CHAT = "messages"


def chat(i: int, words: int) -> dict[str, Any]:
    answer = f"number {i} " + "and so on " * words
    return {CHAT: [{"role": "user", "content": f"which is {i}?"},
                   {"role": "assistant", "content": answer},
                   {"role": "user", "content": "and then?"},
                   {"role": "assistant", "content": "no more"}]}  # fmt: skip


def preference(i: int, words: int) -> dict[str, Any]:
    return {
        "prompt": f"which is {i}?",
        "chosen": f"number {i}" + " yes" * 8 * words,
        "rejected": "no",
    }


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def of_a_job(
    model: Path, rows: Path, valid: Path, method: str, asked: dict[str, Any], folder: Path
) -> list[dict[str, Any]]:
    """The reports of its data sets that a job's preparation tells."""
    settings = Settings(data_dir=folder / "data", device="cpu", volumes=(str(folder),))
    body = {"model": str(model), "training_file": str(rows), "validation_file": str(valid),
            "method": {"type": method, method: {"hyperparameters": asked}}}  # fmt: skip
    body = parse_create(body).body()
    sources, site = find_sources(body, settings, None, None), Site.of(settings)
    resolved = resolve_job(body, sources, site)
    settled = {**body, "method": resolved.method, "seed": resolved.seed}
    (folder / "job").mkdir()
    request = prepare_request(
        settled, sources, site, job_dir=folder / "job", cache_dir=folder / "cache"
    )
    told: list[RunEvent] = []
    prepare_job(request, told.append)
    reports = [event.data for event in told if "trained_tokens" in event.data]
    found: list[dict[str, Any]] = json.loads(json.dumps(reports))
    return found


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("supervised", {}),
        ("supervised", {"max_seq_len": 96, "overlong": "drop", "train_on": "each_assistant"}),
        ("supervised", {"max_seq_len": 96, "overlong": "truncate_right", "train_on": "all"}),
        ("dpo", {}),
        ("dpo", {"max_seq_len": 128, "overlong": "drop"}),
    ],
)
def test_a_job_and_data_check_agree_on_every_count(
    method: str, asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    model = make_tiny_llama(tmp_path / "tiny", tied=True, seed=0)
    make = chat if method == "supervised" else preference
    rows = write(tmp_path / "rows.jsonl", [make(i, i % 9) for i in range(123)])
    valid = write(tmp_path / "valid.jsonl", [make(i, 3) for i in range(120, 130)])
    options = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    command = ("data", "check", rows, "--valid", valid, "--model", model, "--method", method)
    assert run(*command, *options, "--json") == Exit.OK
    checked = json.loads(capsys.readouterr().out)
    jobs = of_a_job(model, rows, valid, method, asked, tmp_path)
    assert len(jobs) == 2
    for found, job in zip((checked, checked["validation"]), jobs, strict=True):
        assert (found.pop("refused"), found.pop("problems")) == (job.pop("problems"), [])
        assert {name: found[name] for name in job} == job
    assert checked["rows"] == 123 and checked["padding"]["saved_by_packing"] > 0
    if asked:
        assert checked["overlong_rows"]
    else:
        assert checked["max_seq_len"] == json.loads((model / "config.json").read_text())[
            "max_position_embeddings"]  # fmt: skip


def test_rules_of_tokens_without_a_model_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write(tmp_path / "rows.jsonl", [chat(1, 1)])
    assert run("data", "check", rows, "--train-on", "all") == Exit.USAGE
    assert "--train-on: tokens are counted by a model; give --model too" in capsys.readouterr().err
    model = make_tiny_llama(tmp_path / "tiny", tied=True, seed=0)
    longer = ("--model", model, "--max-seq-len", "1000000")
    assert run("data", "check", rows, *longer) == Exit.REFUSED
    assert "the model takes at most" in capsys.readouterr().err
