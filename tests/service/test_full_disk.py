"""A full drive is known by every name it has, and is waited for."""

import asyncio
import errno
import sqlite3

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from headrace.service import full_disk
from headrace.service.full_disk import is_full, patiently
from headrace.storage import IoFailed, NoSpace


def full_database() -> OperationalError:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE rows (text TEXT)")
        connection.exec_driver_sql("PRAGMA max_page_count = 3")
        with pytest.raises(OperationalError) as caught:
            connection.exec_driver_sql("INSERT INTO rows VALUES (zeroblob(1000000))")
    return caught.value


def failed_write(code: int) -> IoFailed:
    """What the store raises when a write of state fails with that number."""
    try:
        raise IoFailed(
            volume="/v", operation="write", offset=0, wanted=1, got=0, cause="it failed"
        ) from OSError(code, "it failed")
    except IoFailed as error:
        return error


def test_every_word_for_a_full_drive_is_known() -> None:
    assert is_full(OSError(errno.ENOSPC, "full")) and is_full(OSError(errno.EDQUOT, "quota"))
    assert is_full(NoSpace("volume")) and is_full(full_database())
    assert is_full(failed_write(errno.ENOSPC)) and not is_full(failed_write(errno.EIO))
    assert not is_full(OSError(errno.EACCES, "no")) and not is_full(ValueError("disk is full"))
    assert not is_full(OperationalError("", None, sqlite3.OperationalError("no such table")))


def test_what_fails_for_want_of_room_is_tried_until_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(full_disk, "RETRY_SECONDS", 0.0)
    errors = [full_database(), OSError(errno.ENOSPC, "full")]

    async def attempt() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert asyncio.run(patiently(attempt)) == "done"


def test_other_errors_are_not_waited_for() -> None:
    async def attempt() -> None:
        raise PermissionError(errno.EACCES, "no")

    with pytest.raises(PermissionError):
        asyncio.run(patiently(attempt))
