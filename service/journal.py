"""The one durable memory of the service: jobs, events, files, uploads, models.

Every method may be called from any thread and blocks until done; the event loop goes through
`call`. Whatever happens to a job is also published to the listener, in the order of commits.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

from .catalog import Catalog
from .database import Database, migrate
from .event_table import EventTable, Listener
from .job_table import JobTable
from .retention import Retention
from .series_table import SeriesTable
from .upload_table import UploadTable

T = TypeVar("T")
P = ParamSpec("P")


class Journal(JobTable, EventTable, SeriesTable, Retention, Catalog, UploadTable):
    """Open with `Journal.open`; close when the daemon ends."""

    def __init__(self, database: Database, listener: Listener) -> None:
        self._database = database
        self._listener = listener

    @classmethod
    def open(cls, path: Path, listener: Listener) -> Self:
        """Open the database at `path`, made or migrated as needed; CannotMigrate."""
        path.parent.mkdir(parents=True, exist_ok=True)
        migrate(path)
        return cls(Database(path), listener)

    def keep_reserve(self) -> None:
        """Hold a little room back again, for writes that free more. Blocks for a moment."""
        self._database.keep_reserve()

    def close(self) -> None:
        """Finish the writes under way and let go of the file."""
        self._database.close()

    async def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a method of the journal in a thread: `await journal.call(journal.job, id)`."""
        return await asyncio.to_thread(method, *args, **kwargs)
