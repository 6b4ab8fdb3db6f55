"""Parquet files as rows of JSON, so that they are judged as all others are.

A table gives every row all fields of all rows, null where a row has none, down into the structures.
So a null field of a structure is taken for one that is not there. What JSON has no form for (bytes,
decimals) becomes an object that no format takes for text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from headrace.storage import file_sha256, install_line

from .data_report import DataProblem

BATCH_ROWS = 256
# What a value that Python or JSON has no form for raises: a map that has a key twice or keys
# that are no text, bytes that are no UTF-8 in a column of text, a day after 9999, nanoseconds.
_NO_PYTHON = (KeyError, ValueError, TypeError, OverflowError, RecursionError)


class ParquetRows:
    """The rows of a file, once and in order. DataProblem when it cannot be read.

    What little is on disk can stand for any amount of memory: a page of its columns, a value of a
    dictionary that many rows name, a list of millions of items. Where such a file may come from
    anyone, read it in a process with a limit; that it was met is a DataProblem too.
    """

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise DataProblem(
                f"{path.name} is Parquet, which is not installed here: "
                f"{install_line('parquet')}, or write its rows as JSON, one object a line"
            ) from error
        self._path = path
        self._error = pyarrow.ArrowException
        try:
            self._file = pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
        except (MemoryError, self._error, OSError) as error:
            raise self._unreadable(error) from error
        self.num_rows: int = self._file.metadata.num_rows
        self.num_taken = 0

    def __iter__(self) -> Iterator[bytes]:
        try:
            for batch in self._file.iter_batches(BATCH_ROWS, use_threads=False):
                for row in batch.to_pylist(maps_as_pydicts="strict"):
                    self.num_taken += 1
                    yield orjson.dumps(without_padding(row), default=_no_json)
        except (MemoryError, self._error, OSError, *_NO_PYTHON) as error:
            # Arrow's own want of memory is both of the first two.
            raise self._unreadable(error) from error

    @property
    def share_taken(self) -> float:
        """How much of the file the rows that came are: 0 to 1."""
        return self.num_taken / max(1, self.num_rows)

    def digest(self) -> str:
        """SHA-256 of the file."""
        return file_sha256(self._path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _unreadable(self, error: Exception) -> DataProblem:
        if isinstance(error, MemoryError):
            return DataProblem(too_much_memory(self._path.name))
        said = f"{self._path.name}: its Parquet data cannot be read ({error})"
        return DataProblem(f"{said}; write the file anew, or its rows as JSON, one object a line")


def too_much_memory(name: str) -> str:
    """What is said of a file that takes more memory to be read than there is for it."""
    return (
        f"{name}: reading its Parquet data takes more memory than there is for it; write the file "
        "anew with smaller pages and row groups (pyarrow: row_group_size=10000), or its rows as "
        "JSON, one object a line"
    )


def without_padding(value: Any) -> Any:
    """A row or a part of it, without the fields that are null."""
    if isinstance(value, dict):
        return {key: without_padding(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_padding(item) for item in value]
    return value


def _no_json(value: Any) -> Any:
    return {"no JSON": type(value).__name__}
