"""The tables are those that the migrations build."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from headrace.service import tables
from headrace.service.database import MIGRATIONS, SCHEMA, CannotMigrate, migrate


def test_the_migrations_build_the_tables(tmp_path: Path) -> None:
    migrate(tmp_path / "a.db")
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert not compare_metadata(context, tables.metadata)
    engine.dispose()


def test_the_schema_is_that_of_the_newest_migration() -> None:
    """`migrate` asks Alembic only where the database's schema is another one."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_heads() == [SCHEMA]


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    migrate(path)
    connection = sqlite3.connect(path)
    connection.execute("update alembic_version set version_num = 'v9999'")
    connection.commit()
    connection.close()
    with pytest.raises(CannotMigrate, match="another version of Headrace"):
        migrate(path)
    assert not list(tmp_path.glob("*.bak*")), "copied, though nothing could change"


def old_database(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of the first schema with a file in it, which still lies in the log."""
    upgrade = command.upgrade
    with monkeypatch.context() as patch:
        patch.setattr(command, "upgrade", lambda config, _: upgrade(config, "v0001"))
        migrate(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "insert into files (id, bytes, created_at, filename, purpose, path, sha256, status)"
            " values ('file-1', 1, 1, 'a', 'fine-tune', '/p', '', 'processed')"
        )
        connection.commit()
    return path


def look(path: Path, question: str) -> list[Any]:
    """What a database answers."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(question).fetchall()


def test_a_database_is_copied_before_its_schema_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_database(tmp_path / "headrace.db", monkeypatch)
    migrate(path)
    copy = tmp_path / "headrace.db.v0001.bak"
    assert copy.stat().st_mode & 0o777 == 0o600
    for held, revision in ((path, "v0003"), (copy, "v0001")):
        assert look(held, "select version_num from alembic_version") == [(revision,)]
        assert look(held, "select id from files") == [("file-1",)]
    assert look(path, "select count(*) from uploads") == [(0,)]
    copy.unlink()
    migrate(path)
    assert not copy.exists(), "copied although nothing changed"


def test_a_new_database_needs_no_copy(tmp_path: Path) -> None:
    migrate(tmp_path / "headrace.db")
    assert not list(tmp_path.glob("*.bak*"))


def test_without_a_copy_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = old_database(tmp_path / "headrace.db", monkeypatch)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("headrace.service.database.os.fsync", full)
        with pytest.raises(CannotMigrate, match="No space left"):
            migrate(path)
    assert look(path, "select version_num from alembic_version") == [("v0001",)]
    assert not list(tmp_path.glob("*.bak*"))
    migrate(path)


def test_a_migration_that_fails_leaves_the_old_schema_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_database(tmp_path / "headrace.db", monkeypatch)
    before = look(path, "select name from sqlite_master order by name")
    upgrade = command.upgrade

    def fail_late(config: Any, revision: str) -> None:
        upgrade(config, revision)
        raise ValueError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(command, "upgrade", fail_late)
        with pytest.raises(ValueError, match="power"):
            migrate(path)
    assert look(path, "select name from sqlite_master order by name") == before
    migrate(path)
    assert look(path, "select version_num from alembic_version") == [("v0003",)]
