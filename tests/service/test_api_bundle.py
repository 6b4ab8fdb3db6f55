"""The bundle of a job: a request with nothing left open, and hashes of all that counts."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling, some_job
from headrace.engine import TrainConfig
from headrace.service.export_answers import Bundle
from headrace.service.jobs import FileRecord, JobRecord
from headrace.service.schemas import parse_create

Served = tuple[FakeDaemon, httpx2.Client]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    daemon = FakeDaemon(tmp_path_factory.mktemp("bundles"))
    with calling(daemon) as client:
        yield daemon, client


def rows(daemon: FakeDaemon) -> FileRecord:
    return daemon.journal.add_file(
        FileRecord(
            id="file-rows", bytes=7, created_at=1, filename="rows.jsonl", purpose="fine-tune",
            path="/nowhere", sha256="ab" * 32,
        )
    )  # fmt: skip


def trained(daemon: FakeDaemon, file: FileRecord) -> JobRecord:
    """A job that was asked for in few words, settled, and has taken two steps."""
    settled = {"n_epochs": 2, "batch_size": 4, "learning_rate": 1e-4}
    asked: dict[str, Any] = {
        "model": "tiny", "training_file": file.id, "priority": 3, "limits": {"max_hours": 1},
        "resume_from": "ftjob-before", "suffix": "mine", "metadata": {"who": "me"},
        "method": {"type": "supervised", "supervised": {"hyperparameters": {}}},
    }  # fmt: skip
    job = daemon.journal.add_job(
        some_job(
            model="tiny",
            training_file=file.id,
            seed=7,
            method={"type": "supervised", "supervised": {"hyperparameters": settled}},
            request=asked,
            engine={
                "settings": {"compute_dtype": "float32", "state_format": "exact", "device": "cpu"},
                "plan": {"clip_way": "serial", "surroundings": {"device": "cpu"}},
            },
        )
    )
    folder = daemon.settings.jobs_dir / job.id
    folder.mkdir(parents=True)
    config = TrainConfig(model="/models/tiny", dataset="/rows", seed=7)
    (folder / "spec.json").write_text(json.dumps(config.to_dict()))
    for step, loss in ((1, 4.0), (2, 3.0)):
        data = {"train_loss": loss, "grad_norm": 1.0, "learning_rate": 1e-4}
        daemon.journal.add_event(
            job.id, type="metrics", level="info", message="step", step=step, data=data
        )
    report = {"rows": 9, "histogram": {"8": 9}, "preview": [[{"text": "secret"}]]}
    daemon.journal.add_event(
        job.id, type="message", level="info", message="training_file: 9 rows", data=report
    )
    return job


def test_a_bundle_leaves_nothing_open_and_holds_no_rows(served: Served) -> None:
    daemon, client = served
    job = trained(daemon, rows(daemon))
    answer = client.get(f"/v1/fine_tuning/jobs/{job.id}/bundle")
    told = answer.json()
    Bundle.model_validate(told)
    assert f'filename="{job.id}.bundle.json"' in answer.headers["content-disposition"]
    request = told["request"]
    assert request["seed"] == 7 and request["compute_dtype"] == "float32"
    assert request["method"]["supervised"]["hyperparameters"]["batch_size"] == 4
    assert not {"resume_from", "priority", "limits", "metadata"} & request.keys()
    assert parse_create(request).body()["suffix"] == "mine"
    assert told["numerics_key"]["seed"] == 7 and told["config"]["model"] == "/models/tiny"
    assert told["curve"]["steps"]["train_loss"] == [4.0, 3.0]
    assert told["surroundings"] == {"device": "cpu"} and told["plan"] == {"clip_way": "serial"}
    (file,) = told["data"]
    assert (file["sha256"], file["param"], file["report"]["rows"]) == (
        "ab" * 32,
        "training_file",
        9,
    )
    assert "secret" not in answer.text


def test_there_is_no_bundle_of_a_job_that_was_never_prepared(served: Served) -> None:
    daemon, client = served
    job = daemon.journal.add_job(some_job(status="cancelled"))
    answer = client.get(f"/v1/fine_tuning/jobs/{job.id}/bundle")
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "not_prepared"
    assert client.get("/v1/fine_tuning/jobs/ftjob-none/bundle").status_code == 404
