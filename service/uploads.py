"""Files that come in parts: each part lies on disk, synced, until the parts become one file.

The journal knows the uploads under way and their parts, so a client can go on after the daemon
was started anew. What belongs to no upload under way is removed at start.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

from headrace.storage import sync_directory

from .contract import Daemon
from .errors import ApiError, not_found
from .filenames import safe_name
from .files import Incoming
from .jobs import FileRecord, PartRecord, UploadRecord, new_id
from .upload_schemas import CompleteUpload, CreateUpload
from .whole_file import discard

LIFE_SECONDS = 3600  # of an upload, from its creation; as in the OpenAI API
MAX_PART_BYTES = 64 << 20  # likewise
MAX_PARTS = 10_000
TIMES_SENT = 2  # a part comes again when its answer was lost, and then lies here twice
MEMORY_SECONDS = 86_400  # for how long an ended upload is still known


class Uploads:
    """Uploads in parts. Calls for one upload wait for each other; a part's bytes may come abreast.

    A repeated `complete` or `cancel` is answered like the first. ApiError: 404 for an unknown
    upload, 400 for one that has ended.
    """

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def _files_dir(self) -> Path:
        return self._daemon.settings.files_dir

    async def create(self, request: CreateUpload) -> UploadRecord:
        """Begin an upload. ApiError (400) when the file would be larger than it may be."""
        limit = self._daemon.settings.max_file_bytes
        if request.bytes > limit:
            message = f"bytes is {request.bytes}; a file may have {limit}."
            raise ApiError(400, message, param="bytes", code="file_too_large")
        now = int(time.time())
        expiry = request.expires_after
        record = UploadRecord(
            id=new_id("upload_"),
            bytes=request.bytes,
            filename=safe_name(request.filename),
            purpose=request.purpose,
            created_at=now,
            expires_at=now + LIFE_SECONDS,
            file_expires_after=expiry.seconds if expiry else None,
        )
        journal = self._daemon.journal
        return await journal.call(journal.add_upload, record)

    async def add_part(
        self,
        upload_id: str,
        body: AsyncIterator[bytes],
        *,
        content_type: str,
        content_length: int | None,
    ) -> PartRecord:
        """Write the part `data` of a form to disk. ApiError also: 413, 507."""
        await self._pending(upload_id)
        with Incoming(
            self._files_dir,
            max_file_bytes=MAX_PART_BYTES,
            file_field="data",
            file_id=new_id("part_"),
        ) as incoming:
            received = await incoming.receive(
                body, content_type=content_type, content_length=content_length
            )
            if received.fields:
                name = min(received.fields)
                raise ApiError(400, f"Unknown field {name!r}.", param=name, code="unknown_field")
            part = PartRecord(
                id=received.id,
                upload_id=upload_id,
                bytes=received.bytes,
                created_at=int(time.time()),
            )
            async with self._lock(upload_id):
                upload = await self._pending(upload_id)
                return await asyncio.to_thread(self._place, upload, part, received.path)

    async def complete(
        self, upload_id: str, request: CompleteUpload
    ) -> tuple[UploadRecord, FileRecord | None]:
        """Put the file together and list it. ApiError (400): parts that do not make it.

        The file is None when the upload was completed before and its file has gone since.
        """
        journal = self._daemon.journal
        async with self._lock(upload_id):
            upload = await journal.call(self._require, upload_id)
            if upload.status != "completed":
                upload = await self._pending(upload_id)
                await asyncio.to_thread(self._join, upload, request)
                upload = await journal.call(self._require, upload_id)
            elif upload.part_ids != request.part_ids:
                raise _ended(upload)
        return upload, await journal.call(journal.file, upload.file_id)

    async def cancel(self, upload_id: str) -> UploadRecord:
        """End an upload without a file and remove its parts."""
        journal = self._daemon.journal
        async with self._lock(upload_id):
            upload = await journal.call(self._require, upload_id)
            if upload.status != "cancelled":
                upload = await self._pending(upload_id)
                await asyncio.to_thread(self._end, upload, "cancelled")
        return await journal.call(self._require, upload_id)

    async def expire(self) -> None:
        """End the uploads whose time is over; forget those that ended long ago."""
        journal = self._daemon.journal
        for upload in await journal.call(journal.pending_uploads):
            async with self._lock(upload.id):
                now = await journal.call(self._require, upload.id)
                if now.status == "pending" and _is_over(now):
                    await asyncio.to_thread(self._end, now, "expired")
        await journal.call(journal.forget_uploads, int(time.time()) - MEMORY_SECONDS)

    def reclaim(self) -> None:
        """Remove what lies here and belongs to no upload under way; at start, before any call."""
        journal = self._daemon.journal
        kept: dict[str, set[str]] = {}
        for upload in journal.pending_uploads():
            kept[upload.id] = {part.id for part in journal.parts(upload.id)}
            (self._files_dir / upload.file_id).unlink(missing_ok=True)  # of a daemon of old
        for folder in self._folder("").glob("*"):
            if folder.name not in kept:
                discard(folder)
        for path in self._folder("").glob("*/*"):
            if path.name not in kept[path.parent.name]:
                discard(path)

    def _place(self, upload: UploadRecord, part: PartRecord, path: Path) -> PartRecord:
        """Give a part its place until the upload ends. ApiError (400): too many of them."""
        journal = self._daemon.journal
        parts = journal.parts(upload.id)
        if sum(p.bytes for p in parts) + part.bytes > TIMES_SENT * upload.bytes:
            message = f"The parts have more than {TIMES_SENT} times the {upload.bytes} bytes told."
            raise ApiError(400, message, param="data", code="too_many_bytes")
        if len(parts) >= MAX_PARTS:
            message = f"An upload has {MAX_PARTS} parts at most; send larger ones."
            raise ApiError(400, message, param="data", code="too_many_parts")
        folder = self._folder(upload.id)
        folder.mkdir(parents=True, exist_ok=True)
        path.rename(folder / part.id)
        for directory in (folder, folder.parent, folder.parent.parent):
            sync_directory(directory)
        return journal.add_part(part)

    def _join(self, upload: UploadRecord, request: CompleteUpload) -> None:
        journal = self._daemon.journal
        sizes = {part.id: part.bytes for part in journal.parts(upload.id)}
        _check_parts(upload, sizes, request.part_ids)
        paths = [self._folder(upload.id) / part_id for part_id in request.part_ids]
        with Incoming(
            self._files_dir, max_file_bytes=upload.bytes, file_id=upload.file_id
        ) as incoming:
            whole = incoming.join(paths, filename=upload.filename, md5=request.md5)
            incoming.keep(
                whole,
                purpose=upload.purpose,
                expires_after=upload.file_expires_after,
                record=partial(journal.complete_upload, upload.id, request.part_ids),
            )
        discard(self._folder(upload.id))

    def _end(self, upload: UploadRecord, status: str) -> None:
        self._daemon.journal.end_upload(upload.id, status)
        discard(self._folder(upload.id))
        (self._files_dir / upload.file_id).unlink(missing_ok=True)

    def _folder(self, upload_id: str) -> Path:
        return self._files_dir / "uploads" / upload_id

    def _lock(self, upload_id: str) -> asyncio.Lock:
        lock = self._locks.get(upload_id)
        if lock is None:
            lock = self._locks[upload_id] = asyncio.Lock()
        return lock

    def _require(self, upload_id: str) -> UploadRecord:
        upload = self._daemon.journal.upload(upload_id)
        if upload is None:
            raise not_found("upload", upload_id, param="upload_id")
        return upload

    async def _pending(self, upload_id: str) -> UploadRecord:
        """The upload, if it can still go on."""
        upload = await self._daemon.journal.call(self._require, upload_id)
        if upload.status != "pending":
            raise _ended(upload)
        if _is_over(upload):
            message = f"Upload {upload_id} was not completed within {LIFE_SECONDS} s."
            raise ApiError(400, message, code="upload_expired", hint="Begin a new one.")
        return upload


def _check_parts(upload: UploadRecord, sizes: Mapping[str, int], part_ids: Sequence[str]) -> None:
    """Refuse parts that are not there, come twice, or do not have the bytes that were told."""
    for part_id in part_ids:
        if part_id not in sizes:
            message = f"Upload {upload.id} has no part {part_id!r:.80}."
            raise ApiError(400, message, param="part_ids", code="part_not_found")
    if len(set(part_ids)) < len(part_ids):
        message = "A part is named twice in part_ids."
        raise ApiError(400, message, param="part_ids", code="invalid_value")
    total = sum(sizes[part_id] for part_id in part_ids)
    if total != upload.bytes:
        message = f"The parts have {total} bytes together; the upload was to have {upload.bytes}."
        raise ApiError(400, message, param="part_ids", code="size_mismatch")


def _is_over(upload: UploadRecord) -> bool:
    return time.time() >= upload.expires_at


def _ended(upload: UploadRecord) -> ApiError:
    message = f"Upload {upload.id} is {upload.status}."
    return ApiError(400, message, code="invalid_upload_status", hint="Begin a new one.")
