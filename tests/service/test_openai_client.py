"""The unmodified `openai` client drives the API."""

import csv
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from fakes_daemon import FakeDaemon, serving, some_job
from headrace.service.auth import Tokens
from headrace.service.jobs import FileRecord, Status

ROW = b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}\n'


class Hits:
    """What reached the server, as the client's transport saw it."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> None:
        self.requests.append(request)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> FakeDaemon:
    models = tmp_path_factory.mktemp("models")
    (models / "tiny").mkdir()
    (models / "tiny" / "config.json").write_text("{}")
    return FakeDaemon(tmp_path_factory.mktemp("openai"), models_dir=(models,))


@pytest.fixture(scope="module")
def hits() -> Hits:
    return Hits()


@pytest.fixture(scope="module")
def client(daemon: FakeDaemon, hits: Hits) -> Iterator[openai.OpenAI]:
    http = httpx2.Client(event_hooks={"request": [hits]}, trust_env=False)
    with (
        serving(daemon) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http) as client,
    ):
        yield client


@pytest.fixture
def file_id(client: openai.OpenAI) -> str:
    return client.files.create(file=("a.jsonl", ROW), purpose="fine-tune").id


@pytest.fixture
def jobs(client: openai.OpenAI) -> Any:
    return client.fine_tuning.jobs


def refusal(call: Any, **how: Any) -> openai.APIStatusError:
    """How the client tells of a refusal."""
    with pytest.raises(openai.APIStatusError) as caught:
        call(**how)
    assert caught.value.request_id and caught.value.request_id.startswith("req_")
    return caught.value


def test_files_go_up_from_a_path_bytes_and_a_tuple(client: openai.OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROW)
    sources: list[Any] = [path, ROW, ("rows.jsonl", ROW), path.open("rb")]
    for source in sources:
        file = client.files.create(file=source, purpose="fine-tune")
        assert client.files.wait_for_processing(file.id).status == "processed"
        assert client.files.content(file.id).read() == ROW
    sources[-1].close()
    assert client.files.retrieve(file.id).filename == "rows.jsonl"


def test_files_are_listed_and_deleted(client: openai.OpenAI, file_id: str) -> None:
    listed = [file.id for file in client.files.list(purpose="fine-tune", limit=2)]
    assert listed[0] == file_id and len(set(listed)) == len(listed)
    assert client.files.delete(file_id).deleted
    assert isinstance(refusal(client.files.retrieve, file_id=file_id), openai.NotFoundError)


def test_a_file_may_expire(client: openai.OpenAI) -> None:
    file = client.files.create(
        file=ROW, purpose="fine-tune", expires_after={"anchor": "created_at", "seconds": 7200}
    )
    assert file.expires_at == file.created_at + 7200


def test_a_job_of_two_fields(jobs: Any, file_id: str) -> None:
    job = jobs.create(model="tiny", training_file=file_id)
    assert (job.status, job.hyperparameters.n_epochs, job.seed) == ("queued", 3, 7)
    assert job.method.supervised.hyperparameters.batch_size == 8
    again, place = jobs.retrieve(job.id), job.engine
    for name in (
        "estimated_start",
        "estimated_finish",
    ):  # of a job that waits: they go on with time
        was, now = place.pop(name), again.engine.pop(name)
        assert was == now or was <= now, name
    assert again == job
    assert job.engine["plan"] == {"step_seconds": 1.5}


def test_the_deprecated_hyperparameters_are_mirrored(jobs: Any, file_id: str) -> None:
    job = jobs.create(model="tiny", training_file=file_id, hyperparameters={"n_epochs": 5})
    assert job.method.supervised.hyperparameters.n_epochs == job.hyperparameters.n_epochs == 5


def test_nulls_are_taken(jobs: Any, file_id: str) -> None:
    job = jobs.create(
        model="tiny",
        training_file=file_id,
        seed=None,
        suffix=None,
        metadata=None,
        validation_file=None,
        integrations=None,
    )
    assert job.metadata is None and isinstance(job.seed, int)


def test_extensions_go_through_extra_body(jobs: Any, file_id: str) -> None:
    job = jobs.create(model="tiny", training_file=file_id, extra_body={"priority": 3})
    assert job.engine["priority"] == 3


def test_jobs_are_found_by_metadata(jobs: Any, file_id: str) -> None:
    mine = jobs.create(model="tiny", training_file=file_id, metadata={"run": file_id, "a": "b"})
    jobs.create(model="tiny", training_file=file_id, metadata={"run": "other"})
    assert [job.id for job in jobs.list(metadata={"run": file_id})] == [mine.id]


def test_iterating_walks_every_event_once(daemon: FakeDaemon, jobs: Any) -> None:
    job = daemon.journal.add_job(some_job(status="running"))
    for step in range(1, 45):
        daemon.journal.add_event(job.id, type="metrics", level="info", message="m", step=step)
    events = list(jobs.list_events(job.id, limit=10))
    assert len({event.id for event in events}) == 45
    assert [event.step for event in events] == [*range(44, 0, -1), None]


def test_iterating_walks_every_checkpoint_once(daemon: FakeDaemon, jobs: Any) -> None:
    job = daemon.journal.add_job(some_job(status="running"))
    for step in range(1, 8):
        daemon.journal.add_checkpoint(
            job.id, step=step, name=f"{job.id}:ckpt-step-{step}", path="/p", metrics={}
        )
    points = list(jobs.checkpoints.list(job.id, limit=3))
    assert [point.step_number for point in points] == list(range(7, 0, -1))
    assert points[0].fine_tuning_job_id == job.id


@pytest.mark.parametrize(
    ("before", "verbs", "after"),
    [
        ("queued", ["cancel"], "cancelled"),
        ("running", ["cancel"], "cancelled"),
        ("paused", ["cancel"], "cancelled"),
        ("running", ["pause", "resume"], "queued"),
    ],
)
def test_a_job_obeys(
    daemon: FakeDaemon, jobs: Any, before: Status, verbs: list[str], after: str
) -> None:
    job = daemon.journal.add_job(some_job(status=before))
    for verb in verbs:
        answer = getattr(jobs, verb)(job.id)
    assert answer.status == after


def test_cancelling_a_finished_job_hits_the_server_once(
    daemon: FakeDaemon, jobs: Any, hits: Hits
) -> None:
    job = daemon.journal.add_job(some_job(status="succeeded"))
    hits.requests.clear()
    error = refusal(jobs.cancel, fine_tuning_job_id=job.id)
    assert isinstance(error, openai.BadRequestError) and "succeeded" in str(error)
    assert len(hits.requests) == 1


def test_errors_say_what_and_where(client: openai.OpenAI, jobs: Any, file_id: str) -> None:
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epoch": 3}}}
    error = refusal(jobs.create, model="tiny", training_file=file_id, method=method)
    assert isinstance(error, openai.BadRequestError)
    assert ".n_epochs'?" in str(error)
    assert (error.param, error.code) == (
        "method.supervised.hyperparameters.n_epoch",
        "unknown_field",
    )
    unknown = refusal(jobs.create, model="tiny", training_file="file-none")
    assert (unknown.param, unknown.type) == ("training_file", "invalid_request_error")
    assert isinstance(refusal(jobs.retrieve, fine_tuning_job_id="x"), openai.NotFoundError)
    assert isinstance(refusal(client.models.retrieve, model="x"), openai.NotFoundError)


def test_a_lost_answer_makes_no_twin(daemon: FakeDaemon, jobs: Any, file_id: str) -> None:
    lost = threading.Event()

    def lose_the_first(response: httpx2.Response) -> None:
        if not lost.is_set():
            lost.set()
            raise httpx2.ReadError("the cable was pulled")

    http = httpx2.Client(event_hooks={"response": [lose_the_first]}, trust_env=False)
    base_url = str(jobs._client.base_url)
    with openai.OpenAI(base_url=base_url, api_key="none", http_client=http) as client:
        job = client.fine_tuning.jobs.create(model="tiny", training_file=file_id)
    made = [j for j in daemon.journal.jobs(limit=1000) if j.training_file == file_id]
    assert lost.is_set() and [j.id for j in made] == [job.id]


def test_a_result_file_is_a_table(client: openai.OpenAI, daemon: FakeDaemon) -> None:
    path = daemon.settings.files_dir / "file-results"
    path.write_text("step,train_loss\n1,2.5\n")
    daemon.journal.add_file(
        FileRecord(
            id="file-results",
            bytes=path.stat().st_size,
            created_at=1,
            filename="results.csv",
            purpose="fine-tune-results",
            path=str(path),
            sha256="",
        )
    )
    job = daemon.journal.add_job(some_job(status="succeeded", result_files=["file-results"]))
    result = client.fine_tuning.jobs.retrieve(job.id).result_files[0]
    rows = list(csv.DictReader(io.StringIO(client.files.content(result).text)))
    assert rows == [{"step": "1", "train_loss": "2.5"}]


def test_models_are_those_there_and_those_made(client: openai.OpenAI, daemon: FakeDaemon) -> None:
    job = daemon.journal.add_job(some_job(status="succeeded"))
    name = f"ft:tiny:headrace:x:{job.id}"
    daemon.journal.add_model(name=name, path="/nowhere", job_id=job.id)
    assert {model.id for model in client.models.list()} >= {"tiny", name}
    assert client.models.retrieve(name).owned_by == "headrace"
    assert client.models.delete(name).deleted


def test_a_token_is_checked(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path)
    token = Tokens(daemon.settings.tokens_path).create("t")
    with serving(daemon) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong") as stranger:
            error = refusal(stranger.models.list)
        assert isinstance(error, openai.AuthenticationError) and error.code == "invalid_api_key"
        with openai.OpenAI(base_url=f"{url}/v1", api_key=token) as owner:
            assert owner.models.list().data == []
