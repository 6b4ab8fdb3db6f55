"""The SQLite file under the journal: its pragmas, its one writer, its migrations."""

import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    Table,
    create_engine,
    delete,
    event,
    select,
)
from sqlalchemy.engine import RowMapping

from headrace.storage import sync_directory

from .jobs import UnknownId
from .reserve import Reserve

T = TypeVar("T")

MIGRATIONS = Path(__file__).parent / "migrations"
SCHEMA = "v0003"  # the newest of the migrations
BUSY_SECONDS = 30


class CannotMigrate(RuntimeError):
    """A newer Headrace made the database, or there is no room for the copy of an older one."""


class Database:
    """One SQLite file. Any thread may read; one thread of its own writes, one call at a time.

    Writes are on disk when they return (`synchronous=FULL`). A relaxed write survives the death
    of the process and may be lost with the power: it is for rows that can be had again elsewhere.

    A little room is held back beside the file, for writes that free more: else a full drive could
    not be told to remove what fills it.
    """

    def __init__(self, path: Path) -> None:
        self._engine = _make_engine(path)
        self._writer = ThreadPoolExecutor(1, "journal-writer")
        self._reserve = Reserve(path.with_name(f"{path.name}.reserve"))

    def write(
        self,
        change: Callable[[Connection], T],
        *,
        relaxed: bool = False,
        frees: bool = False,
        then: Callable[[T], None] | None = None,
    ) -> T:
        """Run `change` in a transaction of the writer thread; its exceptions undo it.

        `then` is called on the same thread after the commit, so calls come in the order of commits.
        One that `frees` room on the drive may use what is held back.
        """
        write = partial(self._transact, change, relaxed, then)
        if frees:
            write = partial(self._reserve.spend, write)
        return self._writer.submit(write).result()

    def keep_reserve(self) -> None:
        """Hold room back again where it was used, once there is some. Blocks for a moment."""
        self._reserve.keep()

    def read(self, question: Callable[[Connection], T]) -> T:
        """Run `question` on a connection of its own; every statement sees whole transactions."""
        with self._engine.connect() as connection:
            return question(connection)

    def all(self, question: Select[Any]) -> Sequence[RowMapping]:
        """Every row of an answer, as mappings."""
        return self.read(lambda c: c.execute(question).mappings().all())

    def first(self, question: Select[Any]) -> RowMapping | None:
        """The first row of an answer, if there is one."""
        return self.read(lambda c: c.execute(question.limit(1)).mappings().first())

    def seq_of(self, table: Table, row_id: str) -> int:
        """The place of a row in its table's order of arrival. UnknownId when there is none."""
        row = self.first(select(table.c.seq).where(table.c.id == row_id))
        if row is None:
            raise UnknownId(row_id)
        return int(row["seq"])

    def remove(self, table: Table, where: ColumnElement[bool]) -> bool:
        """Delete rows; whether there were any."""
        return self.write(lambda c: c.execute(delete(table).where(where)).rowcount > 0, frees=True)

    def close(self) -> None:
        """Let the writer finish, then close every connection."""
        self._writer.shutdown()
        self._engine.dispose()

    def _transact(
        self, change: Callable[[Connection], T], relaxed: bool, then: Callable[[T], None] | None
    ) -> T:
        with self._engine.connect() as connection:
            level = "NORMAL" if relaxed else "FULL"
            connection.exec_driver_sql(f"PRAGMA synchronous={level}")
            connection.rollback()  # the pragma opened a transaction of its own
            with connection.begin():
                result = change(connection)
        if then:
            then(result)
        return result


def without_seq(row: RowMapping) -> dict[str, Any]:
    """A row's values without its place in the order of arrival."""
    return {name: value for name, value in row.items() if name != "seq"}


def migrate(path: Path) -> None:
    """Make the database at `path`, or bring an older one up to date, wholly or not at all.

    An older one is copied first, to a file beside it named after its schema: `….v0001.bak`.
    CannotMigrate when a newer Headrace made it, or when there is no room for the copy.
    """
    engine = _make_engine(path)
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")  # or SQLite commits each table alone
            found = _schema_of(connection)
            if found != SCHEMA:
                _upgrade(connection, found, path)
    finally:
        engine.dispose()


def _schema_of(connection: Connection) -> str | None:
    """The schema that Alembic has noted in the database; None in a new one."""
    tables = "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
    if connection.exec_driver_sql(tables).first() is None:
        return None
    noted = connection.exec_driver_sql("SELECT version_num FROM alembic_version").first()
    return None if noted is None else str(noted[0])


def _upgrade(connection: Connection, found: str | None, path: Path) -> None:
    """Run the migrations that are missing, after a copy of what was `found`."""
    from alembic import command  # a start that finds the newest schema does without
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        if found is not None:
            ScriptDirectory.from_config(config).get_revision(found)  # CommandError: not of ours
            _back_up(path, path.with_name(f"{path.name}.{found}.bak"))
        command.upgrade(config, "head")
    except CommandError as e:
        raise CannotMigrate(
            f"{path} was made by another version of Headrace (this one knows schemas up to "
            f"{SCHEMA!r}): {e}. Start the version that made it, or name another data directory."
        ) from e


def _back_up(path: Path, copy: Path) -> None:
    """Copy a database, log and all; `copy` is there whole and on the drive, or not at all."""
    part = copy.with_name(f"{copy.name}.part")
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(part)) as target:
            source.backup(target)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(copy)
        sync_directory(copy.parent)
    except (OSError, sqlite3.Error) as e:
        part.unlink(missing_ok=True)
        raise CannotMigrate(
            f"{path} must be copied to {copy} before its schema changes, and cannot be: {e}. "
            "Make room on the drive; nothing was changed."
        ) from e


def _make_engine(path: Path) -> Engine:
    engine = create_engine(
        f"sqlite:///{path}",
        connect_args={"check_same_thread": False, "timeout": BUSY_SECONDS},
        pool_size=16,
        json_serializer=lambda value: orjson.dumps(value).decode(),
        json_deserializer=orjson.loads,
    )
    event.listen(engine, "connect", _set_up)
    return engine


def _set_up(connection: Any, _record: object) -> None:
    # SQLite's own lower() knows the letters of English alone.
    connection.create_function("casefold", 1, str.casefold, deterministic=True)
    for pragma in ("journal_mode=WAL", "foreign_keys=ON", "synchronous=FULL"):
        connection.execute(f"PRAGMA {pragma}").close()
