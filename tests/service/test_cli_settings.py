"""`--set NAME=VALUE` of the commands that take a job."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from command import run
from headrace.service.cli.output import CliError, Exit
from headrace.service.cli.settings import apply_settings
from headrace.service.job_fields import ELSEWHERE_CALLED
from headrace.service.schemas import job_fields, parse_create
from scripted_daemon import ScriptedDaemon

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.md", "engine/README.md", "service/README.md", "deploy/docs/operations.md")
BODY = {"model": "m", "training_file": "file-1"}


def applied(*settings: str, **body: Any) -> dict[str, Any]:
    """A create body with these settings, as the API would take it; without model and rows."""
    given = {**BODY, **body}
    apply_settings(given, list(settings), method=None)
    parse_create(given)
    return {name: value for name, value in given.items() if name not in BODY}


def supervised(**values: Any) -> dict[str, Any]:
    return {"method": {"type": "supervised", "supervised": {"hyperparameters": values}}}


def dpo(**values: Any) -> dict[str, Any]:
    return {"method": {"type": "dpo", "dpo": {"hyperparameters": values}}}


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (["learning_rate=1e-4"], supervised(learning_rate=1e-4)),
        (["adapter.type=lora", "adapter.rank=8"], supervised(adapter={"type": "lora", "rank": 8})),
        (['adapter={"type": "lora"}', "adapter.rank=8"],
         supervised(adapter={"type": "lora", "rank": 8})),
        (["method.dpo.hyperparameters.beta=0.2", "n_epochs=1"], dpo(beta=0.2, n_epochs=1)),
        (["method=dpo", "beta=0.2"], dpo(beta=0.2)),
        (["beta=0.2", "method.type=dpo"], dpo(beta=0.2)),
        (["priority=5"], {"priority": 5}),
        (["strategy=zero_infinity"], {"strategy": "zero_infinity"}),
        (["suffix=7"], {"suffix": "7"}),
        (["seed=3", "seed=4"], {"seed": 4}),
        (["host_bytes=20GB"], {"host_bytes": 20 * 10**9}),
        (["limits.max_hours=2", "limits.min_free_disk=1GiB"],
         {"limits": {"max_hours": 2, "min_free_disk": 1 << 30}}),
        (["deterministic=True"], {"deterministic": True}),
        (['export=[{"format": "gguf"}]'], {"export": [{"format": "gguf"}]}),
        (["metadata.team=blue", "metadata.year=2026"],
         {"metadata": {"team": "blue", "year": "2026"}}),
        (["dataset.columns.prompt=question"], {"dataset": {"columns": {"prompt": "question"}}}),
        (["durability.minutes=10"], {"durability": {"minutes": 10}}),
        (["durability=none", "priority=auto"], {"durability": "none", "priority": "auto"}),
        (["hyperparameters.n_epochs=2"], {"hyperparameters": {"n_epochs": 2}}),
    ],
)  # fmt: skip
def test_any_field_of_a_job_can_be_set(settings: list[str], wanted: dict[str, Any]) -> None:
    assert applied(*settings) == wanted


def test_every_field_has_a_name_that_finds_it() -> None:
    fields = job_fields()
    for kind in ("supervised", "dpo"):
        found = [fields.find(name, kind) for name in fields.names(kind)]
        assert None not in found
        assert len({field.path for field in found if field}) == len(found)
        for name, called in ELSEWHERE_CALLED.items():
            assert fields.find(name, kind) is None, f"{name} is a field of its own by now"
            assert (fields.find(called, kind) is None) == (called == "beta" and kind != "dpo")


def test_settings_are_added_to_a_job_files_own() -> None:
    legacy = {"hyperparameters": {"n_epochs": 2}}
    assert applied("batch_size=4", **legacy) == supervised(n_epochs=2, batch_size=4)
    assert applied("priority=1", **dpo(beta=0.1)) == dpo(beta=0.1) | {"priority": 1}
    assert applied("batch_size=4", **dpo(beta=0.1)) == dpo(beta=0.1, batch_size=4)
    assert applied(**legacy) == legacy


@pytest.mark.parametrize(
    ("settings", "body", "said"),
    [
        (["learning_rte=1"], {}, "did you mean method.supervised.hyperparameters.learning_rate, "
                                 "or learning_rate for short?"),
        (["rank=8"], {}, "did you mean method.supervised.hyperparameters.adapter.rank"),
        (["lora_rank=8"], dpo(), "did you mean method.dpo.hyperparameters.adapter.rank"),
        (["max_hours=8"], {}, "did you mean limits.max_hours?"),
        (["prority=8"], {}, "did you mean priority?"),
        (["zzz=a"], {}, "it has model, training_file"),
        (["beta=0.1"], {}, "beta is of method dpo, and this job's is supervised; add --method dpo"),
        (["label_smoothing=0.1"], supervised(), "add --method dpo"),
        (["method.dpo.hyperparameters.beta=0.1"], supervised(), "the job file says supervised"),
        (["priority"], {}, "wants NAME=VALUE"),
        (["=3"], {}, "wants NAME=VALUE"),
        (["freeze=*.mlp.*"], {}, "takes JSON, such as '[\"…\"]', and got '*.mlp.*'"),
        (["metadata=blue"], {}, "takes JSON"),
        (["host_bytes=much"], {}, "much"),
        (["durability=step", "durability.minutes=3"], {}, "'step' already; give one of them"),
        (["n_epochs=3"], {"method": "dpo"}, "wanted an object"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_says_what_can(
    settings: list[str], body: dict[str, Any], said: str
) -> None:
    with pytest.raises(CliError) as refused:
        applied(*settings, **body)
    assert said in str(refused.value)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_setting_that_a_document_names_can_be_set(document: str) -> None:
    text = ROOT.joinpath(document).read_text()
    named = re.findall(r"--set ([a-z_.]+=[^\s`),;]+)", text)
    for setting in named:
        name = setting.partition("=")[0]
        assert any(job_fields().find(name, kind) for kind in ("supervised", "dpo")), setting
    assert named or document != "README.md"


def test_beta_without_its_method_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("submit", "--model", "m", "--train", "file-1", "--beta", "0.1")
    assert run(*command) == Exit.USAGE
    assert "add --method dpo" in capsys.readouterr().err


def test_a_dry_run_of_a_job_file_is_its_plan(
    daemon: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps({**BODY, "dry_run": True}))
    daemon.answer("POST /v1/fine_tuning/plans", {"object": "fine_tuning.plan"})
    assert run("submit", job_file, "--json") == Exit.OK
    assert json.loads(capsys.readouterr().out)["object"] == "fine_tuning.plan"


@pytest.mark.parametrize("word", [None, "auto", False, "yes"])
def test_what_is_no_dry_run_is_a_job_or_the_daemons_to_refuse(
    daemon: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str], word: Any
) -> None:
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps({**BODY, "dry_run": word}))
    daemon.answer("POST /v1/fine_tuning/jobs", {"object": "fine_tuning.job"})
    assert run("submit", job_file, "--json") == Exit.OK
    assert json.loads(capsys.readouterr().out)["object"] == "fine_tuning.job"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["job.json", "--rows", "4"], "--rows says nothing of a plan for a job file"),
        (["job.json", "--schemes"], "--schemes says nothing of a plan for a job file"),
        (["--shape", "llama3-8b", "--params", "3"], "--params says nothing of a plan for --shape"),
        (["--shape", "llama3-8b", "--schemes", "--set", "a=1"], "--set says nothing"),
        (["--shape", "llama3-8b", "--set", "batch_rows=3"], "give --rows instead"),
        (
            ["--shape", "llama3-8b", "--set", "clip_mode=none", "--set", "max_grad_norm=2"],
            "says nothing with clip_mode=none",
        ),
        (["--shape", "llama3-8b", "--set", "clip_mod=none"], "Did you mean 'clip_mode'?"),
        (["--shape", "llama3-8b", "--set", "lora_rank=3"], "without --set method=lora; give that"),
        (["--shape", "llama3-8b", "--set", "dpo_beta=3", "--set", "method=lora"], "objective=dpo"),
    ],
)
def test_an_option_that_a_plan_would_not_look_at_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("plan", "--box", "h200-pcie", *options) == Exit.USAGE
    assert said in " ".join(capsys.readouterr().err.split())


def test_train_takes_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps(BODY))
    assert run("train", job_file, "--set", "learning_rte=1") == Exit.USAGE
    assert "learning_rate" in capsys.readouterr().err
