"""When a drive is full: what that looks like, and waiting for room instead of giving up."""

import errno
import logging
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from headrace.storage import NoSpace

T = TypeVar("T")

RETRY_SECONDS = 1.0
SQLITE_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
ROOM_BYTES = 8 << 20  # below that neither the journal nor the logs can be counted on

log = logging.getLogger(__name__)


def is_full(error: BaseException) -> bool:
    """Whether the error is one of a drive without room, as the system, SQLite or the store say.

    Or was raised because of one: a plan says it so, and a write of state on a file system that has
    no room for what was reserved there.
    """
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    cause = getattr(error, "orig", None)  # what SQLAlchemy wraps
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", None) in SQLITE_CODES
    because = error.__cause__
    return isinstance(error, NoSpace) or (because is not None and is_full(because))


def has_room(directory: Path) -> bool:
    """Whether journal and logs in that directory can grow."""
    return shutil.disk_usage(directory).free >= ROOM_BYTES


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """What `attempt` gives; it is made again until there is room on the drive.

    It must undo itself when it fails, as a transaction does.
    """
    import asyncio  # the worker, which asks `is_full`, has no event loop

    while True:
        try:
            return await attempt()
        except Exception as error:
            if not is_full(error):
                raise
            log.warning("waiting for room on the drive: %s", error)
        await asyncio.sleep(RETRY_SECONDS)
