"""A file that comes in parts is the file that was meant, or none."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling, serving
from headrace.service import uploads
from headrace.service.jobs import UploadRecord

PARTS = [b'{"a":1}\n', b'{"b":22}\n', b'{"c":333}\n']
WHOLE = b"".join(PARTS)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> FakeDaemon:
    return FakeDaemon(tmp_path_factory.mktemp("uploads"), max_file_bytes=100_000)


@pytest.fixture(scope="module")
def client(daemon: FakeDaemon) -> Iterator[httpx2.Client]:
    with calling(daemon) as client:
        yield client


def begin(client: httpx2.Client, **changed: Any) -> Any:
    """Begin an upload of the three parts."""
    body = {
        "bytes": len(WHOLE),
        "filename": "rows.jsonl",
        "mime_type": "application/jsonl",
        "purpose": "fine-tune",
    }
    return client.post("/v1/uploads", json=body | changed)


def send(client: httpx2.Client, upload_id: str, content: bytes) -> httpx2.Response:
    """Send a part."""
    return client.post(f"/v1/uploads/{upload_id}/parts", files={"data": ("part", content)})


def sent(client: httpx2.Client, **changed: Any) -> tuple[str, list[str]]:
    """An upload whose three parts have come: its id and theirs."""
    upload_id = begin(client, **changed).json()["id"]
    return upload_id, [send(client, upload_id, part).json()["id"] for part in PARTS]


def complete(
    client: httpx2.Client, upload_id: str, part_ids: list[str], **more: Any
) -> httpx2.Response:
    """Complete an upload."""
    return client.post(f"/v1/uploads/{upload_id}/complete", json={"part_ids": part_ids} | more)


def refusal(response: httpx2.Response) -> tuple[int, str | None]:
    """Status and code of a refusal."""
    return response.status_code, response.json()["error"]["code"]


def on_disk(daemon: FakeDaemon) -> list[Path]:
    """What lies in the place of parts and files under way."""
    root = daemon.settings.files_dir
    return [path for name in ("uploads", "incoming") for path in (root / name).glob("*")]


def test_parts_become_a_file_in_the_order_that_is_told(
    client: httpx2.Client, daemon: FakeDaemon
) -> None:
    upload = begin(client).json()
    assert (upload["object"], upload["status"], upload["file"]) == ("upload", "pending", None)
    assert upload["expires_at"] == upload["created_at"] + 3600
    came = [send(client, upload["id"], part).json() for part in reversed(PARTS)]
    assert (came[0]["object"], came[0]["upload_id"]) == ("upload.part", upload["id"])
    md5 = hashlib.md5(WHOLE).hexdigest().upper()
    done = complete(client, upload["id"], [part["id"] for part in reversed(came)], md5=md5).json()
    file = done["file"]
    assert (done["status"], file["bytes"], file["filename"]) == (
        "completed",
        len(WHOLE),
        "rows.jsonl",
    )
    assert file["sha256"] == hashlib.sha256(WHOLE).hexdigest()
    assert client.get(f"/v1/files/{file['id']}").json() == file
    assert client.get(f"/v1/files/{file['id']}/content").content == WHOLE
    assert not on_disk(daemon)


def test_an_answer_that_was_lost_can_be_asked_for_again(client: httpx2.Client) -> None:
    upload_id, part_ids = sent(client)
    assert complete(client, upload_id, part_ids).json() == (
        complete(client, upload_id, part_ids).json()
    )
    assert refusal(complete(client, upload_id, part_ids[:1])) == (400, "invalid_upload_status")
    assert refusal(client.post(f"/v1/uploads/{upload_id}/cancel")) == (400, "invalid_upload_status")


def test_the_file_expires_as_it_was_told(client: httpx2.Client) -> None:
    upload_id, part_ids = sent(client, expires_after={"anchor": "created_at", "seconds": 7200})
    file = complete(client, upload_id, part_ids).json()["file"]
    assert file["expires_at"] == file["created_at"] + 7200


@pytest.mark.parametrize(
    ("choose", "more", "code"),
    [
        (lambda ids: ids[:2], {}, "size_mismatch"),
        (lambda ids: ids, {"md5": "0" * 32}, "checksum_mismatch"),
        (lambda ids: [*ids, "part_none"], {}, "part_not_found"),
        (lambda ids: [ids[0], *ids], {}, "invalid_value"),
        (lambda ids: [], {}, "invalid_value"),
        (lambda ids: ids, {"md5": "short"}, "invalid_value"),
        (lambda ids: ids, {"sha256": "0"}, "unknown_field"),
    ],
)
def test_parts_that_do_not_make_the_file_are_refused_and_kept(
    client: httpx2.Client, choose: Any, more: dict[str, Any], code: str
) -> None:
    upload_id, part_ids = sent(client)
    before = client.get("/v1/files").json()
    assert refusal(complete(client, upload_id, choose(part_ids), **more)) == (400, code)
    assert client.get("/v1/files").json() == before
    assert complete(client, upload_id, part_ids).json()["status"] == "completed"


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"bytes": 100_001}, "bytes"),
        ({"bytes": 0}, "bytes"),
        ({"purpose": "assistants"}, "purpose"),
        ({"filename": ""}, "filename"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, "expires_after.seconds"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_an_upload_that_cannot_be_is_refused_at_once(
    client: httpx2.Client, changed: dict[str, Any], param: str
) -> None:
    answer = begin(client, **changed)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param


def test_a_name_is_no_path(client: httpx2.Client) -> None:
    assert begin(client, filename="../../etc/passwd").json()["filename"] == "passwd"


def test_a_cancelled_upload_leaves_nothing_and_takes_nothing(
    client: httpx2.Client, daemon: FakeDaemon
) -> None:
    upload_id, part_ids = sent(client)
    assert client.post(f"/v1/uploads/{upload_id}/cancel").json()["status"] == "cancelled"
    assert client.post(f"/v1/uploads/{upload_id}/cancel").json()["status"] == "cancelled"
    assert not (daemon.settings.files_dir / "uploads" / upload_id).exists()
    for answer in (send(client, upload_id, b"x"), complete(client, upload_id, part_ids)):
        assert refusal(answer) == (400, "invalid_upload_status")


def test_an_unknown_upload_is_not_found(client: httpx2.Client) -> None:
    for name in ("upload_none", "..%2F..%2Fheadrace.db"):
        answers = [
            send(client, name, b"x"),
            complete(client, name, ["a"]),
            client.post(f"/v1/uploads/{name}/cancel"),
        ]
        assert [answer.status_code for answer in answers] == [404] * 3


def test_a_part_that_is_none_leaves_nothing(client: httpx2.Client, daemon: FakeDaemon) -> None:
    url = f"/v1/uploads/{begin(client).json()['id']}/parts"
    file: Any = {"data": ("part", b"x")}
    assert refusal(client.post(url, files={"file": ("part", b"x")})) == (400, "missing_field")
    assert refusal(client.post(url, files={"data": ("part", b"")})) == (400, "empty_file")
    assert refusal(client.post(url, files=file, data={"a": "b"})) == (400, "unknown_field")
    assert refusal(client.post(url, json={})) == (400, "invalid_body")
    assert not on_disk(daemon)


def test_a_part_larger_than_it_may_be_is_refused(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_PART_BYTES", 5)
    upload_id = begin(client).json()["id"]
    assert refusal(send(client, upload_id, b"123456")) == (413, "file_too_large")
    assert send(client, upload_id, b"12345").status_code == 200


def test_a_part_may_be_longer_than_other_bodies(client: httpx2.Client) -> None:
    upload_id = begin(client, bytes=90_000).json()["id"]
    assert refusal(send(client, upload_id, b"x" * 3_000_000)) == (400, "too_many_bytes")


def test_parts_hold_no_more_than_twice_what_was_told(client: httpx2.Client) -> None:
    upload_id = begin(client, bytes=10).json()["id"]
    assert send(client, upload_id, b"x" * 10).status_code == 200
    assert send(client, upload_id, b"x" * 10).status_code == 200
    assert refusal(send(client, upload_id, b"x")) == (400, "too_many_bytes")


def test_there_is_an_end_to_the_number_of_parts(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_PARTS", 2)
    upload_id = begin(client).json()["id"]
    codes = [send(client, upload_id, b"x").status_code for _ in range(3)]
    assert codes == [200, 200, 400]


def test_an_upload_goes_on_after_a_restart_and_leftovers_go(tmp_path: Path) -> None:
    with calling(FakeDaemon(tmp_path)) as client:
        upload_id, part_ids = sent(client)
    folder = tmp_path / "files" / "uploads"
    stray, foreign = folder / upload_id / "part_stray", folder / "upload_gone" / "part_x"
    unlisted = tmp_path / "files" / upload_id.replace("upload_", "file-")
    foreign.parent.mkdir()
    odd, odder = folder / "a file", folder / upload_id / "a folder" / "in it"
    odder.parent.mkdir()
    for path in (stray, foreign, unlisted, odd, odder):
        path.write_bytes(b"x")
    with calling(FakeDaemon(tmp_path)) as client:
        assert not any(path.exists() for path in (stray, foreign.parent, unlisted, odd, odder))
        file = complete(client, upload_id, part_ids).json()["file"]
        assert client.get(f"/v1/files/{file['id']}/content").content == WHOLE


def test_an_upload_ends_when_its_hour_is_over(tmp_path: Path) -> None:
    now = int(time.time())
    late, old = (
        UploadRecord(
            id=name,
            bytes=1,
            filename="a",
            purpose="fine-tune",
            created_at=expires_at - 3600,
            expires_at=expires_at,
        )
        for name, expires_at in (("upload_late", now - 5), ("upload_old", now - 90_000))
    )
    daemon = FakeDaemon(tmp_path)
    with calling(daemon) as client:
        upload_id, part_ids = sent(client)
        folder = tmp_path / "files" / "uploads" / upload_id
        assert folder.exists()
        daemon.journal.add_upload(late)
        daemon.journal.add_upload(old)
        assert refusal(send(client, late.id, b"x")) == (400, "upload_expired")
    with (
        serving(daemon) as url,
        httpx2.Client(base_url=url, timeout=60) as client,
    ):  # the first sweep is now
        until = time.monotonic() + 60
        while daemon.journal.upload(old.id) and time.monotonic() < until:
            time.sleep(0.01)
        expired = daemon.journal.upload(late.id)
        assert expired and expired.status == "expired"
        assert daemon.journal.upload(old.id) is None and folder.exists()
        assert refusal(complete(client, late.id, ["a"])) == (400, "invalid_upload_status")
