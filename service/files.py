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
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiofiles
import aiofiles.threadpool.binary

from headrace.storage import sync_directory

from .errors import ApiError
from .form import Form
from .jobs import FileRecord, new_id
from .journal import Journal

FREE_FLOOR_BYTES = 64 << 20  # the journal and the logs need room too


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
    """The place of files under way. A context manager: what was not kept is removed."""

    def __init__(self, files_dir: Path, *, max_file_bytes: int) -> None:
        self._files_dir = files_dir
        self._max_file_bytes = max_file_bytes
        self._id = new_id("file-")
        self._part = files_dir / "incoming" / f"{self._id}.part"

    def __enter__(self) -> Self:
        self._part.parent.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._part.unlink(missing_ok=True)

    async def receive(
        self, body: AsyncIterator[bytes], *, content_type: str, content_length: int | None
    ) -> Received:
        """Write the file of a multipart body to disk. ApiError: 400, 413, 507."""
        form = Form(content_type)
        self._check_size(content_length or 0)
        digest = hashlib.sha256()
        size = 0
        try:
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
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ApiError(507, f"The file cannot be stored: {e.strerror}.", code="no_space") from e
        if size == 0:
            raise ApiError(400, "The file is empty.", param="file", code="empty_file")
        return Received(
            id=self._id,
            path=self._part,
            bytes=size,
            sha256=digest.hexdigest(),
            filename=form.filename or "file",
            fields=form.fields,
        )

    def keep(self, file: Received, *, purpose: str, expires_after: int | None) -> FileRecord:
        """Give the file its lasting place, for `expires_after` seconds; call in a thread."""
        now = int(time.time())
        path = self._files_dir / file.id
        file.path.rename(path)
        sync_directory(self._files_dir)
        return FileRecord(
            id=file.id,
            bytes=file.bytes,
            created_at=now,
            filename=file.filename,
            purpose=purpose,
            path=str(path),
            sha256=file.sha256,
            expires_at=None if expires_after is None else now + expires_after,
        )

    def _check_size(self, content_length: int) -> None:
        if content_length > self._max_file_bytes + (1 << 16):  # the form around it is small
            raise self._too_large()
        free = shutil.disk_usage(self._part.parent).free
        if content_length + FREE_FLOOR_BYTES > free:
            message = f"The file needs {content_length} bytes and {free} are free on the drive."
            raise ApiError(507, message, code="no_space", hint="Delete files or jobs.")

    def _too_large(self) -> ApiError:
        message = f"The file is larger than the {self._max_file_bytes} bytes that are allowed."
        return ApiError(413, message, param="file", code="file_too_large")


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
    """Forget a file and remove its bytes. ApiError (400) names the jobs that still need it."""
    if users := journal.jobs_using(file.id):
        message = f"File {file.id} is in use by {', '.join(users)}; cancel that first."
        raise ApiError(400, message, param="file_id", code="file_in_use")
    journal.remove_file(file.id)
    Path(file.path).unlink(missing_ok=True)


def remove_expired(journal: Journal) -> None:
    """Remove the files whose time is over, but for those that a job still needs."""
    for file in journal.expired_files(int(time.time())):
        with suppress(ApiError):  # in use: looked at again the next time
            remove_file(journal, file)


def remove_leftovers(files_dir: Path) -> None:
    """Remove what an upload left that ended with the process."""
    for part in (files_dir / "incoming").glob("*.part"):
        part.unlink(missing_ok=True)


async def _sync(file: aiofiles.threadpool.binary.AsyncBufferedIOBase) -> None:
    await file.flush()
    await asyncio.to_thread(os.fsync, file.fileno())
