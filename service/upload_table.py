"""The part of the journal that holds uploads in parts."""

from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from . import tables
from .database import Database, without_seq
from .jobs import FileRecord, PartRecord, UploadRecord


class UploadTable:
    """Uploads and the parts of those under way. Moves are the caller's to check."""

    _database: Database

    def add_upload(self, record: UploadRecord) -> UploadRecord:
        """Record an upload that begins."""
        self._database.write(lambda c: c.execute(insert(tables.uploads).values(**asdict(record))))
        return record

    def upload(self, upload_id: str) -> UploadRecord | None:
        """The upload of that id."""
        row = self._database.first(select(tables.uploads).where(tables.uploads.c.id == upload_id))
        return UploadRecord(**without_seq(row)) if row else None

    def pending_uploads(self) -> list[UploadRecord]:
        """Uploads under way, oldest first."""
        uploads = tables.uploads
        question = select(uploads).where(uploads.c.status == "pending").order_by(uploads.c.seq)
        return [UploadRecord(**without_seq(row)) for row in self._database.all(question)]

    def add_part(self, record: PartRecord) -> PartRecord:
        """Record a part whose bytes are in place."""
        part = insert(tables.upload_parts).values(**asdict(record))
        self._database.write(lambda c: c.execute(part))
        return record

    def parts(self, upload_id: str) -> list[PartRecord]:
        """The parts of an upload under way, in order of arrival."""
        parts = tables.upload_parts
        question = select(parts).where(parts.c.upload_id == upload_id).order_by(parts.c.seq)
        return [PartRecord(**without_seq(row)) for row in self._database.all(question)]

    def complete_upload(self, upload_id: str, part_ids: list[str], file: FileRecord) -> None:
        """The upload is that file from now on, in one transaction."""

        def change(c: Connection) -> None:
            c.execute(insert(tables.files).values(**asdict(file)))
            _end(c, upload_id, status="completed", part_ids=part_ids)

        self._database.write(change)

    def end_upload(self, upload_id: str, status: str) -> None:
        """The upload is `cancelled` or `expired`; its parts are forgotten."""
        self._database.write(lambda c: _end(c, upload_id, status=status), frees=True)

    def forget_uploads(self, before: int) -> None:
        """Remove the records of ended uploads that could have gone on until `before` at most."""
        uploads = tables.uploads
        old = (uploads.c.status != "pending") & (uploads.c.expires_at < before)
        self._database.remove(uploads, old)


def _end(c: Connection, upload_id: str, **values: Any) -> None:
    c.execute(delete(tables.upload_parts).where(tables.upload_parts.c.upload_id == upload_id))
    c.execute(update(tables.uploads).where(tables.uploads.c.id == upload_id).values(**values))
