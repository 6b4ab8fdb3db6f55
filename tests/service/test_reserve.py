"""A full drive can still be told to remove what fills it."""

import errno
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from fakes_daemon import some_job
from headrace.service import reserve
from headrace.service.database import Database
from headrace.service.events import Hub
from headrace.service.journal import Journal
from headrace.service.reserve import RESERVE_BYTES, Reserve


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_room_is_taken_and_given_once(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    kept = Reserve(path)
    assert path.stat().st_blocks * 512 >= RESERVE_BYTES
    tries: list[bool] = []

    def attempt() -> str:
        tries.append(path.exists())
        if path.exists():
            full()
        return "done"

    assert kept.spend(attempt) == "done" and tries == [True, False]
    with pytest.raises(OSError, match="No space"):
        kept.spend(lambda: full())
    kept.keep()
    assert path.exists()
    with pytest.raises(ValueError):
        kept.spend(lambda: int("x"))
    assert path.exists()


def test_half_a_reserve_is_made_whole(tmp_path: Path) -> None:
    path = tmp_path / "reserve"
    path.touch()
    Reserve(path)
    assert path.stat().st_blocks * 512 >= RESERVE_BYTES


def test_no_room_is_taken_where_there_is_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "LEAST_FREE_BYTES", 1 << 62)
    Reserve(tmp_path / "reserve")
    Reserve(Path("/proc/reserve"))
    assert list(tmp_path.iterdir()) == []


def test_what_frees_room_is_written_on_a_full_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(tmp_path / "headrace.db", Hub())
    held = tmp_path / "headrace.db.reserve"
    job = journal.add_job(some_job())
    journal.add_model(name="ft:x", path="/x", job_id=job.id)
    transact = Database._transact

    def without_room(*arguments: object) -> object:
        if held.exists():
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise OperationalError("", None, error)
        return transact(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "_transact", without_room)
    with pytest.raises(OperationalError):
        journal.add_job(some_job())
    assert held.exists(), "what takes room does not use it"
    assert journal.move(job.id, "cancelled").status == "cancelled"
    journal.keep_reserve()
    assert held.exists() and journal.remove_model("ft:x")
    journal.close()
