import errno
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from sqlalchemy.exc import OperationalError

from fakes_daemon import FakeDaemon, calling, some_job
from headrace.service.creation import MAX_PLANS
from headrace.service.errors import ApiError
from headrace.service.jobs import Status

JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeDaemon, httpx2.Client]]:
    daemon = FakeDaemon(tmp_path_factory.mktemp("jobs"))
    with calling(daemon) as client:
        yield daemon, client


@pytest.fixture
def daemon(served: tuple[FakeDaemon, httpx2.Client]) -> Iterator[FakeDaemon]:
    yield served[0]
    served[0].refusal = None
    for job in served[0].journal.jobs(limit=1000):
        if not job.is_terminal:
            served[0].journal.move(job.id, "cancelled")


@pytest.fixture
def client(daemon: FakeDaemon, served: tuple[FakeDaemon, httpx2.Client]) -> httpx2.Client:
    return served[1]


@pytest.fixture
def body(client: httpx2.Client) -> dict[str, Any]:
    form = {"purpose": "fine-tune"}
    file = client.post("/v1/files", data=form, files={"file": ("a.jsonl", b"{}\n")}).json()
    return {"model": "tiny", "training_file": file["id"]}


def error(response: httpx2.Response, status: int = 400) -> dict[str, Any]:
    """The error of a refusal, which always has its four keys and a request id."""
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"].startswith("req_")
    found: dict[str, Any] = response.json()["error"]
    assert found.keys() >= {"message", "type", "param", "code"}
    return found


def test_a_new_job_is_queued_with_its_settings_resolved(
    client: httpx2.Client, daemon: FakeDaemon, body: dict[str, Any]
) -> None:
    wakes = daemon.wakes
    hyperparameters = {"n_epochs": 2, "batch_size": "auto"}
    method = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    job = client.post(JOBS, json=body | {"method": method, "metadata": {"a": "b"}}).json()
    assert job["id"].startswith("ftjob-") and job["object"] == "fine_tuning.job"
    assert (job["status"], job["seed"], job["metadata"]) == ("queued", 7, {"a": "b"})
    assert job["hyperparameters"]["n_epochs"] == 2 and job["hyperparameters"]["batch_size"] == 8
    assert job["method"]["supervised"]["hyperparameters"] == job["hyperparameters"]
    assert job["engine"]["plan"] == {"step_seconds": 1.5}
    assert (job["error"], job["fine_tuned_model"], job["result_files"]) == (None, None, [])
    assert daemon.wakes == wakes + 1
    assert daemon.resolved[-1]["method"]["supervised"]["hyperparameters"] == {"n_epochs": 2}
    kept = daemon.journal.job(job["id"])
    assert kept and kept.request == daemon.resolved[-1]


def test_the_state_of_a_job_is_freed_once_it_has_ended(
    client: httpx2.Client, daemon: FakeDaemon, body: dict[str, Any]
) -> None:
    job = client.post(JOBS, json=body).json()["id"]
    assert error(client.post(f"{JOBS}/{job}/free"))["code"] == "invalid_job_status"
    assert daemon.freed == []
    daemon.journal.move(job, "failed")
    answers = [client.post(f"{JOBS}/{job}/free").json() for _ in range(2)]
    assert [answer["freed"] for answer in answers] == [True, False]
    assert error(client.post(f"{JOBS}/ftjob-none/free"), 404)["code"] == "job_not_found"


def test_a_job_shows_its_place_in_the_queue(client: httpx2.Client, body: dict[str, Any]) -> None:
    first = client.post(JOBS, json=body).json()
    urgent = client.post(JOBS, json=body | {"priority": 5}).json()
    assert urgent["engine"]["queue_position"] == 1
    assert client.get(f"{JOBS}/{first['id']}").json()["engine"]["queue_position"] == 2


@pytest.mark.parametrize(
    ("changed", "param", "code"),
    [
        ({"training_file": "file-none"}, "training_file", "file_not_found"),
        ({"validation_file": "file-none"}, "validation_file", "file_not_found"),
        ({"model": "other"}, "model", "model_not_found"),
        ({"model": None}, "model", "missing_field"),
        ({"sead": 3}, "sead", "unknown_field"),
        ({"method": {"type": "reinforcement"}}, "method.type", "unsupported_method"),
        ({"hyperparameters": {"n_epochs": "many"}}, "hyperparameters.n_epochs", "invalid_value"),
    ],
)
def test_a_request_that_cannot_be_is_refused_by_its_field(
    client: httpx2.Client, daemon: FakeDaemon, body: dict[str, Any], changed: Any, param: str,
    code: str,
) -> None:  # fmt: skip
    before = daemon.journal.job_counts()
    found = error(client.post(JOBS, json=body | changed))
    assert (found["param"], found["code"]) == (param, code)
    assert daemon.journal.job_counts() == before


def test_a_result_file_is_no_training_file(
    client: httpx2.Client, daemon: FakeDaemon, body: dict[str, Any]
) -> None:
    record = daemon.journal.file(body["training_file"])
    assert record
    changes = {"id": "file-result", "purpose": "fine-tune-results"}
    fields = {name: getattr(record, name) for name in record.__dataclass_fields__}
    daemon.journal.add_file(type(record)(**fields | changes))
    found = error(client.post(JOBS, json=body | {"training_file": "file-result"}))
    assert found["code"] == "invalid_file_purpose"


def test_what_the_daemon_refuses_reaches_the_user(
    client: httpx2.Client, daemon: FakeDaemon, body: dict[str, Any]
) -> None:
    daemon.refusal = ApiError(400, "needs 41 GiB, 32 given", code="cannot_fit", hint="fewer rows")
    found = error(client.post(JOBS, json=body))
    assert (found["code"], found["hint"]) == ("cannot_fit", "fewer rows")


def test_a_fault_of_the_server_is_told_without_its_insides(
    client: httpx2.Client, daemon: FakeDaemon, body: dict[str, Any]
) -> None:
    daemon.refusal = RuntimeError("secret path")
    found = error(client.post(JOBS, json=body), 500)
    assert found["code"] == "internal" and "secret" not in found["message"]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({"content": b"{", "headers": {"content-type": "application/json"}}, "invalid_json"),
        ({"content": b"{}"}, "invalid_body"),
        ({"content": b"[]", "headers": {"content-type": "application/json"}}, "invalid_body"),
        ({}, "invalid_body"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(
    client: httpx2.Client, sent: dict[str, Any], code: str
) -> None:
    assert error(client.post(JOBS, **sent))["code"] == code


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"seed": ' + b"9" * 5000 + b"}"])
def test_json_that_is_beyond_reading_is_refused(client: httpx2.Client, content: bytes) -> None:
    answer = client.post(JOBS, content=content, headers={"content-type": "application/json"})
    assert error(answer)["code"] == "invalid_json" and "digits" in error(answer)["message"]


@pytest.mark.parametrize("says_its_length", [True, False])
def test_a_body_without_end_is_cut_off(client: httpx2.Client, says_its_length: bool) -> None:
    body = b'{"model": "' + b"x" * (2 << 20) + b'"}'
    content: Any = body if says_its_length else iter([body])
    answer = client.post(JOBS, content=content, headers={"content-type": "application/json"})
    error(answer, 413)


RETRY = {"x-stainless-retry-count": "1"}


def test_a_request_sent_again_makes_no_twin(client: httpx2.Client, body: dict[str, Any]) -> None:
    first = client.post(JOBS, json=body).json()
    for count in ("1", "20", "9" * 5000):
        again = client.post(JOBS, json=body, headers={"x-stainless-retry-count": count}).json()
        assert again["id"] == first["id"]


def test_a_request_that_is_not_a_repeat_makes_a_job(
    client: httpx2.Client, body: dict[str, Any]
) -> None:
    first = client.post(JOBS, json=body).json()
    others = [
        client.post(JOBS, json=body),
        client.post(JOBS, json=body, headers={"x-stainless-retry-count": "0"}),
        client.post(JOBS, json=body | {"seed": 5}, headers=RETRY),
        client.post(JOBS, json=body, headers=RETRY | {"authorization": "Bearer other"}),
    ]
    assert len({first["id"], *(other.json()["id"] for other in others)}) == 5


def test_an_idempotency_key_names_one_request(client: httpx2.Client, body: dict[str, Any]) -> None:
    headers = {"idempotency-key": body["training_file"]}
    first, again = (client.post(JOBS, json=body, headers=headers).json() for _ in range(2))
    assert first["id"] == again["id"]
    other = client.post(JOBS, json=body | {"seed": 3}, headers=headers)
    assert error(other)["code"] == "idempotency_key_reused"


def test_a_plan_makes_no_job(
    client: httpx2.Client, daemon: FakeDaemon, body: dict[str, Any]
) -> None:
    before = daemon.journal.job_counts()
    plan = client.post("/v1/fine_tuning/plans", json=body).json()
    assert (plan["object"], plan["plan"]) == ("fine_tuning.plan", {"step_seconds": 1.5})
    assert client.post(JOBS, json=body | {"dry_run": True}).json() == plan
    assert daemon.journal.job_counts() == before


def test_pages_of_jobs_are_newest_first(client: httpx2.Client, daemon: FakeDaemon) -> None:
    ids = [daemon.journal.add_job(some_job(metadata={"set": "p"})).id for _ in range(5)]
    query: dict[str, Any] = {"limit": 2, "metadata[set]": "p"}
    first = client.get(JOBS, params=query).json()
    second = client.get(JOBS, params=query | {"after": first["last_id"]}).json()
    third = client.get(JOBS, params=query | {"after": second["last_id"]}).json()
    found = [job["id"] for page in (first, second, third) for job in page["data"]]
    assert found == ids[::-1]
    assert [page["has_more"] for page in (first, second, third)] == [True, True, False]


def test_jobs_without_metadata_can_be_asked_for(client: httpx2.Client, daemon: FakeDaemon) -> None:
    daemon.journal.add_job(some_job(metadata={"a": "b"}))
    bare = daemon.journal.add_job(some_job())
    found = client.get(JOBS, params={"metadata": "null", "limit": 1}).json()["data"]
    assert [job["id"] for job in found] == [bare.id]


@pytest.mark.parametrize(
    ("verb", "before", "after"),
    [
        ("cancel", "queued", "cancelled"),
        ("cancel", "validating_files", "cancelled"),
        ("cancel", "running", "cancelled"),
        ("cancel", "paused", "cancelled"),
        ("pause", "queued", "paused"),
        ("pause", "running", "paused"),
        ("resume", "paused", "queued"),
    ],
)
def test_a_job_obeys(
    client: httpx2.Client, daemon: FakeDaemon, verb: str, before: Status, after: str
) -> None:
    job = daemon.journal.add_job(some_job(status=before))
    answer = client.post(f"{JOBS}/{job.id}/{verb}")
    assert (answer.status_code, answer.json()["status"]) == (200, after)
    assert client.get(f"{JOBS}/{job.id}").json()["status"] == after


@pytest.mark.parametrize(
    ("verb", "status"),
    [("cancel", "succeeded"), ("cancel", "cancelled"), ("pause", "paused"), ("pause", "failed"),
     ("resume", "queued"), ("resume", "running"), ("resume", "cancelled")],
)  # fmt: skip
def test_what_a_job_cannot_do_is_a_400_that_no_client_repeats(
    client: httpx2.Client, daemon: FakeDaemon, verb: str, status: Status
) -> None:
    stopped = list(daemon.stopped)
    job = daemon.journal.add_job(some_job(status=status))
    found = error(client.post(f"{JOBS}/{job.id}/{verb}"))
    assert found["code"] == "invalid_job_status" and status in found["message"]
    assert ("once it is paused" in found.get("hint", "")) == (
        (verb, status) == ("resume", "running")
    )
    assert daemon.stopped == stopped


def test_an_unknown_job_is_not_found(client: httpx2.Client) -> None:
    for path in ("", "/events", "/events/stream", "/checkpoints"):
        assert error(client.get(f"{JOBS}/ftjob-none{path}"), 404)["code"] == "job_not_found"
    for verb in ("cancel", "pause", "resume"):
        error(client.post(f"{JOBS}/ftjob-none/{verb}"), 404)


@pytest.mark.parametrize("path", ["", "/{}/events", "/{}/checkpoints"])
def test_a_page_after_an_unknown_id_is_refused(
    client: httpx2.Client, daemon: FakeDaemon, path: str
) -> None:
    job = daemon.journal.add_job(some_job())
    answer = client.get(JOBS + path.format(job.id), params={"after": "x"})
    assert error(answer)["param"] == "after"


def test_a_poll_costs_nothing_while_nothing_happens(
    client: httpx2.Client, daemon: FakeDaemon
) -> None:
    job = daemon.journal.add_job(some_job())
    seen: dict[str, str] = {}

    def again() -> int:
        """Two polls; the status of the second."""
        seen["if-none-match"] = client.get(f"{JOBS}/{job.id}").headers["etag"]
        return client.get(f"{JOBS}/{job.id}", headers=seen).status_code

    # The estimated times of a job that waits go on with the clock: a second may begin in between.
    assert any(again() == 304 for _ in range(3))
    daemon.journal.set_fields(job.id, engine={"step": 1})
    assert client.get(f"{JOBS}/{job.id}", headers=seen).status_code == 200


def test_checkpoints_are_listed_newest_first(client: httpx2.Client, daemon: FakeDaemon) -> None:
    job = daemon.journal.add_job(some_job())
    for step in (4, 8, 12):
        daemon.journal.add_checkpoint(
            job.id, step=step, name=f"ft:t:ckpt-step-{step}", path="/p", metrics={"train_loss": 1.5}
        )
    first = client.get(f"{JOBS}/{job.id}/checkpoints", params={"limit": 2}).json()
    assert [point["step_number"] for point in first["data"]] == [12, 8]
    assert first["data"][0]["metrics"] == {"step": 12, "train_loss": 1.5}
    assert first["data"][0]["fine_tuned_model_checkpoint"] == "ft:t:ckpt-step-12"
    query = {"after": first["last_id"]}
    rest = client.get(f"{JOBS}/{job.id}/checkpoints", params=query).json()
    assert [point["step_number"] for point in rest["data"]] == [4] and not rest["has_more"]


def test_a_running_job_says_when_it_should_end(client: httpx2.Client, daemon: FakeDaemon) -> None:
    job = daemon.journal.add_job(some_job(status="running", engine={"eta_s": 100.0}))
    shown = client.get(f"{JOBS}/{job.id}").json()
    assert shown["estimated_finish"] > 1_700_000_000
    daemon.journal.move(job.id, "failed", error={"code": "x", "message": "the drive is full"})
    shown = client.get(f"{JOBS}/{job.id}").json()
    assert shown["estimated_finish"] is None
    assert shown["error"] == {"code": "x", "message": "the drive is full", "param": None}


def full_database() -> OperationalError:
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    return OperationalError("", None, full)


@pytest.mark.parametrize("full", [full_database(), OSError(errno.ENOSPC, "No space left")])
def test_job_that_the_drive_has_no_room_for_is_refused_with_507(
    daemon: FakeDaemon,
    client: httpx2.Client,
    body: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    full: Exception,
) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise full

    monkeypatch.setattr(daemon.journal, "add_job", no_room)
    assert error(client.post(JOBS, json=body), 507)["code"] == "no_space"


def test_plans_leave_threads_to_everything_else(
    client: httpx2.Client,
    daemon: FakeDaemon,
    body: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    under_way, seen, resolve = [0], [0], daemon.resolve

    def look(asked: dict[str, Any]) -> Any:
        under_way[0] += 1
        seen[0] = max(seen[0], under_way[0])
        time.sleep(0.02)
        under_way[0] -= 1
        return resolve(asked)

    monkeypatch.setattr(daemon, "resolve", look)
    with ThreadPoolExecutor(8) as pool:
        plans = [pool.submit(client.post, "/v1/fine_tuning/plans", json=body) for _ in range(8)]
    assert {plan.result().status_code for plan in plans} == {200}
    assert 1 <= seen[0] <= MAX_PLANS


def test_a_file_that_goes_while_it_is_read_is_not_found(
    client: httpx2.Client,
    daemon: FakeDaemon,
    body: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = False

    def read(_: dict[str, Any]) -> None:
        if gone:
            daemon.journal.remove_file(body["training_file"])
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(daemon, "resolve", read)
    assert error(client.post(JOBS, json=body), 500)["code"] == "internal", "no fault of the request"
    gone = True
    assert error(client.post(JOBS, json=body))["code"] == "file_not_found"
