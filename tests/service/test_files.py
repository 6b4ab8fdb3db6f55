import asyncio
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fakes_daemon import some_job
from headrace.service import files
from headrace.service.errors import ApiError
from headrace.service.events import Hub
from headrace.service.files import FREE_FLOOR_BYTES, Incoming, Received
from headrace.service.form import Form
from headrace.service.jobs import FileRecord, UnknownId
from headrace.service.journal import Journal

TYPE = "multipart/form-data; boundary=xx"
PART = b'--xx\r\nContent-Disposition: form-data; name="a"\r\n\r\n'


def form(content: bytes, *, filename: str = "a.jsonl", purpose: str = "fine-tune") -> bytes:
    """A form with a purpose and a file."""
    return (
        f'--xx\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
        f'--xx\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n\r\n'
    ).encode() + content + b"\r\n--xx--\r\n"  # fmt: skip


async def in_chunks(body: bytes, size: int) -> AsyncIterator[bytes]:
    """A body as it may come over the wire."""
    for start in range(0, len(body), size):
        yield body[start : start + size]


def receive(
    tmp_path: Path, body: bytes, *, chunk: int = 7, limit: int = 1000, length: int | None = None
) -> tuple[Received, bytes]:
    """Receive a body and keep the file; its bytes where they came to lie."""

    async def run() -> tuple[Received, bytes]:
        with Incoming(tmp_path, max_file_bytes=limit) as incoming:
            received = await incoming.receive(
                in_chunks(body, chunk), content_type=TYPE, content_length=length
            )
            kept = incoming.keep(
                received, purpose="fine-tune", expires_after=None, record=lambda file: None
            )
        return received, Path(kept.path).read_bytes()

    return asyncio.run(run())


def refused(tmp_path: Path, body: bytes, **how: int) -> ApiError:
    """How a body is refused; nothing of it may stay."""
    with pytest.raises(ApiError) as caught:
        receive(tmp_path, body, **how)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    return caught.value


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.open(tmp_path / "headrace.db", Hub())
    yield journal
    journal.close()


def stored(
    journal: Journal, tmp_path: Path, *, expires_at: int | None = None, name: str = "1"
) -> FileRecord:
    """A file on disk and in the journal."""
    path = tmp_path / f"file-{name}"
    path.write_bytes(b"x")
    return journal.add_file(
        FileRecord(
            id=f"file-{name}",
            bytes=1,
            created_at=1,
            filename="a",
            purpose="fine-tune",
            path=str(path),
            sha256="",
            expires_at=expires_at,
        )
    )


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
def test_a_file_arrives_byte_for_byte_however_it_is_cut(tmp_path: Path, chunk: int) -> None:
    content = b"\r\n--x\r\n--xy\x00" * 9
    received, bytes_kept = receive(tmp_path, form(content), chunk=chunk)
    assert bytes_kept == content
    assert (received.bytes, received.fields) == (len(content), {"purpose": "fine-tune"})


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/b/passwd"])
def test_a_file_name_is_a_name_and_no_path(tmp_path: Path, name: str) -> None:
    received, _ = receive(tmp_path, form(b"x", filename=name))
    assert received.filename == "passwd"
    assert received.path.parent.parent == tmp_path


def test_a_file_that_is_too_large_is_cut_off(tmp_path: Path) -> None:
    assert refused(tmp_path, form(b"x" * 1001)).status == 413


def test_a_file_that_says_it_is_too_large_is_not_read(tmp_path: Path) -> None:
    assert refused(tmp_path, b"", length=1 << 40, limit=1000).status == 413


def test_a_file_that_finds_no_room_is_refused_before_it_comes(tmp_path: Path) -> None:
    error = refused(tmp_path, b"", length=1 << 60, limit=1 << 61)
    assert (error.status, error.code) == (507, "no_space")
    assert f"{FREE_FLOOR_BYTES} are left for the daemon's own writing" in error.message


def test_a_drive_that_fills_up_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("headrace.service.files.os.fsync", full)
    assert refused(tmp_path, form(b"x")).status == 507


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (form(b""), "empty_file"),
        (form(b"abc")[:-8], "incomplete_body"),
        (b"", "incomplete_body"),
        (b"nonsense", "invalid_body"),
        (PART + b"b\r\n--xx--\r\n", "missing_field"),
        (PART + b"b" * 5000, "invalid_value"),
        (form(b"x").removesuffix(b"--xx--\r\n") + form(b"y"), "invalid_value"),
    ],
)
def test_a_form_that_is_not_whole_leaves_nothing(tmp_path: Path, body: bytes, code: str) -> None:
    error = refused(tmp_path, body)
    assert (error.status, error.code) == (400, code)


@pytest.mark.parametrize("kind", ["", "application/json", "multipart/form-data", "text/plain; x"])
def test_another_content_type_is_refused(kind: str) -> None:
    with pytest.raises(ApiError, match="multipart/form-data"):
        Form(kind)


def test_no_form_however_damaged_breaks_the_reader() -> None:
    rng = random.Random(0)
    whole = form(b"some rows\r\n")
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(damaged))
            damaged[at : at + rng.randint(0, 9)] = rng.randbytes(rng.randint(0, 4))
        with suppress(ApiError):
            reader = Form(TYPE)
            reader.feed(bytes(damaged))
            reader.finish()


def test_an_upload_cut_off_by_the_end_of_the_process_is_removed(
    journal: Journal, tmp_path: Path
) -> None:
    part = tmp_path / "incoming" / "file-1.part"
    part.parent.mkdir()
    part.write_bytes(b"x")
    files.settle_incoming(tmp_path, journal)
    assert not part.exists()


class Died(BaseException):
    """Stands for SIGKILL."""


def survivors(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "journal" not in path.name]


@pytest.mark.parametrize("step", ["record", "rename"])
def test_an_upload_whose_process_dies_is_listed_and_whole_or_gone(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    home = tmp_path / "files"
    home.mkdir()

    def die(*_: object) -> None:
        raise Died

    async def run() -> None:
        incoming = Incoming(home, max_file_bytes=1000).__enter__()  # never left: it dies
        received = await incoming.receive(
            in_chunks(form(b"x"), 7), content_type=TYPE, content_length=None
        )
        with monkeypatch.context() as patch, pytest.raises(Died):
            if step == "rename":
                patch.setattr(Path, "rename", die)
            record = die if step == "record" else journal.add_file
            incoming.keep(received, purpose="fine-tune", expires_after=None, record=record)

    asyncio.run(run())
    files.settle_incoming(home, journal)
    listed = journal.files(limit=10)
    assert survivors(home) == [Path(file.path) for file in listed]
    assert len(listed) == (step == "rename")


def test_a_removal_whose_process_dies_is_whole_or_undone(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "files"
    home.mkdir()
    before, after = (stored(journal, home, expires_at=5, name=name) for name in ("b", "a"))
    part = home / "incoming" / f"{before.id}.part"
    part.parent.mkdir()
    Path(before.path).rename(part)  # it died before the journal had forgotten the file

    def die(*_: object, **__: object) -> None:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(Path, "unlink", die)  # and afterwards
        files.remove_file(journal, after)
    files.settle_incoming(home, journal)
    assert [file.id for file in journal.files(limit=10)] == [before.id]
    assert survivors(home) == [Path(before.path)]


def test_a_removal_that_cannot_be_recorded_is_undone(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stored(journal, tmp_path, expires_at=5)
    monkeypatch.setattr(Journal, "remove_file", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        files.remove_file(journal, file)
    assert Path(file.path).exists()


def test_a_file_that_a_job_comes_to_use_meanwhile_stays(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = stored(journal, tmp_path, expires_at=5)
    job = journal.add_job(some_job(training_file=file.id), needs=[file.id])
    monkeypatch.setattr(Journal, "jobs_using", lambda *_: [])  # it looked before there was one
    with pytest.raises(ApiError, match=job.id):
        files.remove_file(journal, file)
    assert journal.file(file.id) and Path(file.path).exists()


def test_no_job_is_made_of_a_file_that_goes_meanwhile(journal: Journal, tmp_path: Path) -> None:
    file = stored(journal, tmp_path, expires_at=5)
    files.remove_file(journal, file)
    with pytest.raises(UnknownId, match=file.id):
        journal.add_job(some_job(training_file=file.id), needs=[file.id])
    assert journal.jobs() == []


def test_a_file_in_use_stays(journal: Journal, tmp_path: Path) -> None:
    file = stored(journal, tmp_path, expires_at=5)
    job = journal.add_job(some_job(training_file=file.id))
    with pytest.raises(ApiError, match=job.id):
        files.remove_file(journal, file)
    files.remove_expired(journal)
    assert journal.file(file.id) and Path(file.path).exists()


def test_a_file_goes_when_its_time_is_over(journal: Journal, tmp_path: Path) -> None:
    file = stored(journal, tmp_path, expires_at=5)
    files.remove_expired(journal)
    assert journal.file(file.id) is None and not Path(file.path).exists()
