from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling, some_job
from headrace.service.jobs import FileRecord


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> FakeDaemon:
    return FakeDaemon(tmp_path_factory.mktemp("files"), max_file_bytes=100_000)


@pytest.fixture(scope="module")
def client(daemon: FakeDaemon) -> Iterator[httpx2.Client]:
    with calling(daemon) as client:
        yield client


def upload(client: httpx2.Client, content: bytes = b'{"a":1}\n', **fields: Any) -> Any:
    """Send a file."""
    form = {"purpose": "fine-tune"} | fields
    return client.post("/v1/files", data=form, files={"file": ("rows.jsonl", content)})


def error(response: httpx2.Response, status: int) -> dict[str, Any]:
    """The error of a refusal, which always has its four keys and a request id."""
    assert response.status_code == status
    assert response.headers["x-request-id"].startswith("req_")
    found: dict[str, Any] = response.json()["error"]
    assert found.keys() >= {"message", "type", "param", "code"}
    return found


def test_a_file_comes_back_byte_for_byte(client: httpx2.Client) -> None:
    content = bytes(range(256)) * 50
    file = upload(client, content).json()
    assert (file["object"], file["bytes"], file["filename"]) == ("file", 12800, "rows.jsonl")
    assert (file["purpose"], file["status"], file["expires_at"]) == ("fine-tune", "processed", None)
    assert client.get(f"/v1/files/{file['id']}").json() == file
    answer = client.get(f"/v1/files/{file['id']}/content")
    assert answer.content == content
    assert 'filename="rows.jsonl"' in answer.headers["content-disposition"]
    part = client.get(f"/v1/files/{file['id']}/content", headers={"range": "bytes=5-9"})
    assert (part.status_code, part.content) == (206, content[5:10])


def test_fields_after_the_file_count_too(client: httpx2.Client) -> None:
    parts: dict[str, Any] = {"file": ("a", b"x"), "purpose": (None, "fine-tune")}
    assert client.post("/v1/files", files=parts).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "assistants"}, "purpose"),
        ({"purpose": "fine-tune-results"}, "purpose"),
        ({"colour": "red"}, "colour"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"},
         "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "10"},
         "expires_after[seconds]"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named_and_nothing_is_stored(
    client: httpx2.Client, daemon: FakeDaemon, fields: dict[str, Any], param: str
) -> None:
    before = client.get("/v1/files").json()
    assert error(upload(client, **fields), 400)["param"] == param
    assert client.get("/v1/files").json() == before
    assert not list(daemon.settings.files_dir.glob("incoming/*"))


def test_a_file_without_a_purpose_is_told_which_there_are(client: httpx2.Client) -> None:
    answer = client.post("/v1/files", files={"file": ("rows.jsonl", b"{}")})
    assert "wanted fine-tune" in error(answer, 400)["message"]


def test_an_expiry_is_kept(client: httpx2.Client) -> None:
    fields: dict[str, Any] = {
        "expires_after[anchor]": "created_at",
        "expires_after[seconds]": "3600",
    }
    file = upload(client, **fields).json()
    assert file["expires_at"] == file["created_at"] + 3600


def test_a_file_that_is_too_large_is_refused(client: httpx2.Client) -> None:
    assert error(upload(client, b"x" * 100_001), 413)["code"] == "file_too_large"


def test_a_body_that_is_no_form_is_refused(client: httpx2.Client) -> None:
    assert error(client.post("/v1/files", json={"file": "x"}), 400)["code"] == "invalid_body"


def test_an_empty_file_is_refused(client: httpx2.Client) -> None:
    assert error(upload(client, b""), 400)["param"] == "file"


def test_pages_follow_one_another(client: httpx2.Client) -> None:
    ids = [upload(client).json()["id"] for _ in range(3)]
    first = client.get("/v1/files", params={"limit": 2}).json()
    assert [file["id"] for file in first["data"]] == ids[:0:-1]
    assert (first["first_id"], first["last_id"], first["has_more"]) == (ids[2], ids[1], True)
    rest = client.get("/v1/files", params={"after": ids[0], "order": "asc"}).json()
    assert [file["id"] for file in rest["data"]] == ids[1:]
    assert rest["has_more"] is False


@pytest.mark.parametrize("query", [{"after": "file-none"}, {"limit": 0}, {"order": "up"}])
def test_a_bad_page_is_refused(client: httpx2.Client, query: dict[str, Any]) -> None:
    assert error(client.get("/v1/files", params=query), 400)["param"] == next(iter(query))


def test_a_deleted_file_is_gone(client: httpx2.Client, daemon: FakeDaemon) -> None:
    file_id = upload(client).json()["id"]
    answer = client.delete(f"/v1/files/{file_id}").json()
    assert answer == {"id": file_id, "object": "file", "deleted": True}
    assert error(client.get(f"/v1/files/{file_id}"), 404)["code"] == "file_not_found"
    assert not (daemon.settings.files_dir / file_id).exists()


def test_a_file_in_use_is_not_deleted(client: httpx2.Client, daemon: FakeDaemon) -> None:
    file_id = upload(client).json()["id"]
    job = daemon.journal.add_job(some_job(training_file=file_id))
    assert job.id in error(client.delete(f"/v1/files/{file_id}"), 400)["message"]
    daemon.journal.move(job.id, "cancelled")
    assert client.delete(f"/v1/files/{file_id}").status_code == 200


@pytest.mark.parametrize("name", ["file-none", "..%2F..%2Fheadrace.db", "%2e%2e"])
def test_an_unknown_file_is_not_found(client: httpx2.Client, name: str) -> None:
    for path in (f"/v1/files/{name}", f"/v1/files/{name}/content"):
        error(client.get(path), 404)


def test_a_file_whose_bytes_are_gone_is_not_found(
    client: httpx2.Client, daemon: FakeDaemon
) -> None:
    file_id = upload(client).json()["id"]
    record = daemon.journal.file(file_id)
    assert isinstance(record, FileRecord)
    Path(record.path).unlink()
    error(client.get(f"/v1/files/{file_id}/content"), 404)
