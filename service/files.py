"""Uploads: a multipart stream goes to disk as it comes, and counts once it is whole and synced.

Nothing of a file is held in memory but the chunk in hand. A file that did not come whole leaves
nothing behind.
"""

import asyncio
import errno
import hashlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiofiles
import aiofiles.threadpool.binary

from headrace.storage import sync_directory

from .errors import ApiError
from .form import Form
from .jobs import FileRecord, InUse, new_id
from .journal import Journal

FREE_FLOOR_BYTES = 64 << 20  # the journal and the logs need room too
PART = ".part"  # what a file under way is called after its id
CHUNK_BYTES = 1 << 20  # of a file that is put together


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A file that has come whole: its bytes lie at `path`, synced."""

    id: str
    path: Path
    bytes: int
    sha256: str
    filename: str
    fields: dict[str, str]


class Incoming:
    """The place of a file under way. A context manager: what was not kept is removed.

    Forms carry the file in the part `file_field`; `file_id` is drawn unless given.
    """

    def __init__(
        self,
        files_dir: Path,
        *,
        max_file_bytes: int,
        file_field: str = "file",
        file_id: str | None = None,
    ) -> None:
        self._files_dir = files_dir
        self._max_file_bytes = max_file_bytes
        self._file_field = file_field
        self._id = file_id or new_id("file-")
        self._part = _incoming(files_dir, self._id)

    def __enter__(self) -> Self:
        self._part.parent.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._part.unlink(missing_ok=True)

    async def receive(
        self, body: AsyncIterator[bytes], *, content_type: str, content_length: int | None
    ) -> Received:
        """Write the file of a multipart body to disk. ApiError: 400, 413, 507."""
        form = Form(content_type, file_field=self._file_field)
        self._check_size(content_length or 0)
        digest = hashlib.sha256()
        size = 0
        with _no_room_told():
            async with aiofiles.open(self._part, "wb") as file:
                async for chunk in body:
                    data = form.feed(chunk)
                    size += len(data)
                    if size > self._max_file_bytes:
                        raise self._too_large()
                    digest.update(data)
                    await file.write(data)
                form.finish()
                await _sync(file)
        if size == 0:
            raise ApiError(400, "The file is empty.", param=self._file_field, code="empty_file")
        return Received(
            id=self._id,
            path=self._part,
            bytes=size,
            sha256=digest.hexdigest(),
            filename=form.filename or "file",
            fields=form.fields,
        )

    def join(self, parts: Sequence[Path], *, filename: str, md5: str | None) -> Received:
        """Write the file that these parts make, in their order; call in a thread.

        ApiError: 400 when its MD5 is not `md5` (hexadecimal), 507.
        """
        size = sum(part.stat().st_size for part in parts)
        self._check_size(size)
        digest = hashlib.sha256()
        check = hashlib.md5(usedforsecurity=False) if md5 is not None else None
        with _no_room_told(), self._part.open("wb") as file:
            for chunk in _chunks(parts):
                digest.update(chunk)
                if check:
                    check.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        if check and md5 and check.hexdigest() != md5.lower():
            message = f"The parts have MD5 {check.hexdigest()}; wanted {md5}."
            raise ApiError(400, message, param="md5", code="checksum_mismatch")
        return Received(
            id=self._id,
            path=self._part,
            bytes=size,
            sha256=digest.hexdigest(),
            filename=filename,
            fields={},
        )

    def keep(
        self,
        file: Received,
        *,
        purpose: str,
        expires_after: int | None,
        record: Callable[[FileRecord], object],
    ) -> FileRecord:
        """Give the file its lasting place, for `expires_after` seconds; call in a thread.

        `record` writes it down in the journal, before it is moved: whoever dies in between leaves
        what `settle_incoming` moves on.
        """
        now = int(time.time())
        path = self._files_dir / file.id
        kept = FileRecord(
            id=file.id,
            bytes=file.bytes,
            created_at=now,
            filename=file.filename,
            purpose=purpose,
            path=str(path),
            sha256=file.sha256,
            expires_at=None if expires_after is None else now + expires_after,
        )
        record(kept)
        file.path.rename(path)
        sync_directory(self._files_dir)
        return kept

    def _check_size(self, content_length: int) -> None:
        if content_length > self._max_file_bytes + (1 << 16):  # the form around it is small
            raise self._too_large()
        free = shutil.disk_usage(self._part.parent).free
        if content_length + FREE_FLOOR_BYTES > free:
            message = (
                f"The file needs {content_length} bytes, and of the {free} free on the drive "
                f"{FREE_FLOOR_BYTES} are left for the daemon's own writing."
            )
            raise ApiError(507, message, code="no_space", hint="Delete files or jobs.")

    def _too_large(self) -> ApiError:
        message = f"The file is larger than the {self._max_file_bytes} bytes that are allowed."
        return ApiError(413, message, param=self._file_field, code="file_too_large")


def require_rows(journal: Journal, file_id: str, param: str) -> FileRecord:
    """The file of training rows that a create body names in `param`. ApiError (400)."""
    file = journal.file(file_id)
    if file is None:
        message = f"{param} {file_id!r} does not exist; upload it first."
        raise ApiError(400, message, param=param, code="file_not_found")
    if file.purpose != "fine-tune":
        message = f"{param} {file_id} has purpose {file.purpose!r}; wanted 'fine-tune'."
        raise ApiError(400, message, param=param, code="invalid_file_purpose")
    return file


def remove_file(journal: Journal, file: FileRecord) -> None:
    """Forget a file and remove its bytes. ApiError (400) names the jobs that still need it.

    The bytes are put where `settle_incoming` looks first: whoever dies before the journal has
    forgotten the file has not removed it, and whoever dies afterwards leaves nothing behind.
    """
    if users := journal.jobs_using(file.id):
        raise _in_use(file, users)
    path = Path(file.path)
    leaving = _incoming(path.parent, file.id)
    leaving.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        path.rename(leaving)
    try:
        journal.remove_file(file.id)
    except BaseException as error:
        with suppress(FileNotFoundError):
            leaving.rename(path)
        if isinstance(error, InUse):  # by a job that was made at this moment
            raise _in_use(file, error.users) from None
        raise
    leaving.unlink(missing_ok=True)


def _in_use(file: FileRecord, users: Sequence[str]) -> ApiError:
    message = f"File {file.id} is in use by {', '.join(users)}; cancel that first."
    return ApiError(400, message, param="file_id", code="file_in_use")


def remove_expired(journal: Journal) -> None:
    """Remove the files whose time is over, but for those that a job still needs."""
    for file in journal.expired_files(int(time.time())):
        with suppress(ApiError):  # in use: looked at again the next time
            remove_file(journal, file)


def settle_incoming(files_dir: Path, journal: Journal) -> None:
    """See to what was under way when the process before ended; at start, before any call.

    What the journal lists takes its place among the files, the rest goes.
    """
    for part in (files_dir / "incoming").glob(f"*{PART}"):
        if journal.file(part.name.removesuffix(PART)) is None:
            part.unlink(missing_ok=True)
        else:
            part.rename(files_dir / part.name.removesuffix(PART))
            sync_directory(files_dir)


def _incoming(files_dir: Path, file_id: str) -> Path:
    """Where a file lies that is not among the others yet, or not any more."""
    return files_dir / "incoming" / f"{file_id}{PART}"


@contextmanager
def _no_room_told() -> Iterator[None]:
    """Turn a full drive into the 507 that says so."""
    try:
        yield
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ApiError(507, f"The file cannot be stored: {e.strerror}.", code="no_space") from e


def _chunks(parts: Sequence[Path]) -> Iterator[bytes]:
    for path in parts:
        with path.open("rb") as part:
            while chunk := part.read(CHUNK_BYTES):
                yield chunk


async def _sync(file: aiofiles.threadpool.binary.AsyncBufferedIOBase) -> None:
    await file.flush()
    await asyncio.to_thread(os.fsync, file.fileno())
