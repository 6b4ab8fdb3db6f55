"""The tables are those that the migrations build."""

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from headrace.service import tables
from headrace.service.database import migrate


def test_the_migrations_build_the_tables(tmp_path: Path) -> None:
    migrate(tmp_path / "a.db")
    engine = create_engine(f"sqlite:///{tmp_path / 'a.db'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert not compare_metadata(context, tables.metadata)
    engine.dispose()


def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "headrace.db"
    migrate(path)
    connection = sqlite3.connect(path)
    connection.execute("update alembic_version set version_num = 'v9999'")
    connection.commit()
    connection.close()
    with pytest.raises(RuntimeError, match="another version of Headrace"):
        migrate(path)
