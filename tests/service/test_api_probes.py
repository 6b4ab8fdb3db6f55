import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling, some_job
from headrace.service.auth import Tokens
from headrace.service.removal import finish_removals

Served = tuple[FakeDaemon, httpx2.Client]

STEP = {
    "step_seconds": 2.0,
    "num_tokens": 100,
    "forward_seconds": 0.5,
    "stall_read_seconds": 0.25,
    "skipped": False,
    "links": {"nvme_read": {"payload_bytes": 4096, "busy_seconds": 0.1}},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    models = tmp_path_factory.mktemp("models")
    for name in ("base", "empty"):
        (models / name).mkdir()
    (models / "base" / "config.json").write_text("{}")
    (models / "away").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    (models / "away" / "config.json").write_text("{}")
    daemon = FakeDaemon(tmp_path_factory.mktemp("probes"), models_dir=(models,))
    with calling(daemon) as client:
        yield daemon, client


@pytest.fixture
def daemon(served: Served) -> Iterator[FakeDaemon]:
    yield served[0]
    served[0].not_ready = []


@pytest.fixture
def client(served: Served) -> httpx2.Client:
    return served[1]


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
def test_a_daemon_in_order_says_ok(client: httpx2.Client, path: str) -> None:
    assert client.get(path).json() == {"status": "ok"}


def test_a_daemon_that_cannot_work_says_why(client: httpx2.Client, daemon: FakeDaemon) -> None:
    daemon.not_ready = ["the worker is down", "the drive is full"]
    answer = client.get("/readyz")
    found = answer.json()["error"]
    assert (answer.status_code, found["code"]) == (503, "not_ready")
    assert found["reasons"] == daemon.not_ready and "the drive is full" in found["message"]
    assert client.get("/livez").status_code == 200


def test_the_status_is_one_object(client: httpx2.Client, daemon: FakeDaemon) -> None:
    running = daemon.journal.add_job(some_job(status="running"))
    queued = daemon.journal.add_job(some_job())
    answer = client.get("/status")
    status = answer.json()
    assert status["worker"] == {"pid": 0, "state": "idle"}
    assert status["running"]["id"] == running.id
    assert [job["id"] for job in status["queue"]] == [queued.id]
    assert status["jobs"] == {"running": 1, "queued": 1}
    for job in (running, queued):
        daemon.journal.move(job.id, "cancelled")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 404),
        ("GET", "/v1/files/", 404),
        ("POST", "/v1/fine_tuning/alpha/graders/run", 404),
        ("PUT", "/v1/files", 405),
        ("DELETE", "/v1/fine_tuning/jobs", 405),
        ("GET", "/docs", 404),
    ],
)
def test_everything_else_is_refused_in_the_envelope(
    client: httpx2.Client, method: str, path: str, status: int
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]


TOLD = {"step": 3, "loss": 1.5, "valid_loss": 2.5, "valid_mean_token_accuracy": 0.25}


def test_metrics_count_steps_and_forget_ended_jobs(
    client: httpx2.Client, daemon: FakeDaemon
) -> None:
    job = daemon.journal.add_job(some_job(status="running", engine=TOLD))
    daemon.journal.add_event(job.id, type="metrics", level="info", message="m", step=3, data=STEP)
    text = client.get("/metrics").text
    for line in (
        'headrace_jobs{status="running"} 1.0',
        f'headrace_job_loss{{job="{job.id}",split="train"}} 1.5',
        f'headrace_job_loss{{job="{job.id}",split="valid"}} 2.5',
        f'headrace_job_token_accuracy{{job="{job.id}",split="valid"}} 0.25',
        "headrace_step_seconds_count 1.0",
        "headrace_tokens_total 100.0",
        'headrace_link_bytes_total{link="nvme_read"} 4096.0',
        'headrace_stall_seconds_total{waiting_on="read"} 0.25',
        "headrace_ready 1.0",
    ):
        assert line in text.splitlines()
    daemon.journal.move(job.id, "cancelled")
    assert job.id not in client.get("/metrics").text


def test_the_readme_names_the_metrics_that_there_are(client: httpx2.Client) -> None:
    served = set(re.findall(r"^# TYPE (headrace_\w+)", client.get("/metrics").text, re.MULTILINE))
    served = {name for name in served if not name.endswith("_created")}
    readme = Path(__file__).parents[2].joinpath("service/README.md").read_text(encoding="utf-8")
    assert len(served) > 20 and set(re.findall(r"`(headrace_\w+)`", readme)) == served


def test_models_are_folders_and_what_jobs_made(
    client: httpx2.Client, daemon: FakeDaemon, tmp_path: Path
) -> None:
    job = daemon.journal.add_job(some_job(status="succeeded"))
    name = "ft:base:headrace::abc"
    daemon.journal.add_model(name=name, path=str(tmp_path / "export"), job_id=job.id)
    (tmp_path / "export").mkdir()
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [name, "base"]
    assert client.get(f"/v1/models/{name}").json()["object"] == "model"
    answer = client.delete(f"/v1/models/{name}").json()
    assert answer == {"id": name, "object": "model", "deleted": True}
    assert not (tmp_path / "export").exists()
    assert client.get(f"/v1/models/{name}").status_code == 404


def test_a_base_model_is_not_deleted(client: httpx2.Client) -> None:
    assert client.delete("/v1/models/base").json()["error"]["code"] == "not_deletable"
    assert client.get("/v1/models/base").status_code == 200


@pytest.mark.usefixtures("client")
def test_the_log_tells_how_a_job_moves_and_leaves_out_its_steps(
    daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    job = daemon.journal.add_job(some_job())
    daemon.journal.move(job.id, "running")
    daemon.journal.add_event(job.id, type="metrics", level="info", message="Step 1/9")
    daemon.journal.add_event(job.id, type="message", level="warn", message="a row is long")
    said = [record for record in caplog.records if getattr(record, "job_id", "") == job.id]
    assert [record.levelname for record in said] == ["INFO", "INFO", "WARNING"]
    assert said[-1].getMessage() == "a row is long"


def test_a_deleted_model_takes_its_folder_along_or_the_log_says_why_not(
    client: httpx2.Client, daemon: FakeDaemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    maker = daemon.journal.add_job(some_job())
    daemon.journal.move(maker.id, "cancelled")
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.touch()  # nothing that can be removed as a folder
    for path in (folder, file):
        name = f"ft:{path.name}"
        daemon.journal.add_model(name=name, path=str(path), job_id=maker.id)
        assert client.delete(f"/v1/models/{name}").json()["deleted"]
        assert client.get(f"/v1/models/{name}").status_code == 404
    assert not folder.exists() and file.exists()
    (said,) = (record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert "folder stays" in said


def test_a_deleted_model_takes_all_its_exports_along_whoever_dies(
    client: httpx2.Client, daemon: FakeDaemon, tmp_path: Path
) -> None:
    jobs = tmp_path / "jobs"
    hf, gguf = jobs / "j" / "export", jobs / "j" / "export_gguf"
    for path in (hf, gguf):
        path.mkdir(parents=True)
        (path / "weights").write_bytes(b"x")
    told = {"exports": [{"format": "hf", "path": str(hf)}, {"format": "gguf", "path": str(gguf)}]}
    maker = daemon.journal.add_job(some_job(status="succeeded", engine=told))
    daemon.journal.add_model(name="ft:two", path=str(hf), job_id=maker.id)
    assert client.delete("/v1/models/ft:two").json()["deleted"]
    assert list((jobs / "j").iterdir()) == []
    half = jobs / "j" / ".export.removed"  # by a process that died while it removed it
    (half / "more").mkdir(parents=True)
    (jobs / "j" / "spec.json").touch()
    finish_removals(jobs)
    assert [path.name for path in (jobs / "j").iterdir()] == ["spec.json"]


def test_a_model_in_use_is_not_deleted(
    client: httpx2.Client, daemon: FakeDaemon, tmp_path: Path
) -> None:
    user = daemon.journal.add_job(some_job(model="ft:in-use"))
    daemon.journal.add_model(name="ft:in-use", path=str(tmp_path), job_id=user.id)
    assert user.id in client.delete("/v1/models/ft:in-use").json()["error"]["message"]
    daemon.journal.move(user.id, "cancelled")
    daemon.journal.remove_model("ft:in-use")


@pytest.mark.parametrize(
    "name", ["away", "empty", "..", "%2e%2e%2fprobes", "/etc", "base%2F..%2Fbase"]
)
def test_no_name_leads_out_of_the_models_directory(client: httpx2.Client, name: str) -> None:
    assert client.get(f"/v1/models/{name}").status_code == 404


def test_a_token_is_wanted_everywhere_once_it_exists(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path)
    token = Tokens(daemon.settings.tokens_path).create("t")
    with calling(daemon) as client:
        document = client.get("/openapi.json", headers={"authorization": f"Bearer {token}"}).json()
        open_paths = {"/livez", "/readyz", "/healthz", "/metrics"}
        for path, verbs in document["paths"].items():
            for verb in verbs:
                answer = client.request(verb, path.replace("{", "").replace("}", ""))
                expected = 200 if path in open_paths else 401
                assert answer.status_code == expected, f"{verb} {path}"
        for path in ("/", "/openapi.json", "/nowhere"):
            assert client.get(path).status_code == 401
        assert token not in json.dumps(client.get("/status").json())


def test_the_api_description_tells_what_is_really_answered(client: httpx2.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path, verbs in paths.items():
        for verb, operation in verbs.items():
            where, answers = f"{verb} {path}", operation["responses"]
            assert "422" not in answers, f"{where}: nothing answers 422"
            refusal = answers["4XX"]["content"]["application/json"]["schema"]
            assert refusal == {"$ref": "#/components/schemas/Refusal"}, where
            told = answers["200"]["content"]
            json = told.get("application/json")
            assert json is None or "$ref" in json["schema"], f"{where}: its answer has no shape"
            assert operation["summary"] and operation["description"], where
    ids = [operation["operationId"] for verbs in paths.values() for operation in verbs.values()]
    assert len(ids) == len(set(ids))
    form = paths["/v1/files"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert set(form["required"]) == {"purpose", "file"}


def test_a_scrape_from_here_names_this_machine(tmp_path: Path) -> None:
    """Else a page that gave its own name this address could read the metrics by its visitor."""
    daemon = FakeDaemon(tmp_path)
    foreign = ({"host": "evil.example:8400"}, {"origin": "https://evil.example"}, {"host": ""})
    with calling(daemon) as client:
        assert client.get("/metrics").status_code == 200
        for headers in foreign:
            assert client.get("/metrics", headers=headers).status_code == 403, headers
        token = Tokens(daemon.settings.tokens_path).create("t", scope="metrics")
        shown = {"authorization": f"Bearer {token}"}
        assert client.get("/metrics", headers={"host": "localhost:8400"}).status_code == 200
        for headers in foreign:
            assert client.get("/metrics", headers=headers).status_code == 401, headers
            assert client.get("/metrics", headers=headers | shown).status_code == 200


def test_without_a_token_other_origins_are_kept_out(client: httpx2.Client) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        answer: Any = client.get("/v1/models", headers=headers)
        assert answer.status_code == 403 and answer.json()["error"]["type"] == "permission_error"


def test_the_app_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, headrace.service.app; "
        "heavy = {'torch', 'transformers', 'safetensors', 'numpy'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    source = next(path for path in sys.path if path.endswith(".src"))
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}, check=True)
