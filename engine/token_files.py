"""The files of a prepared data set, written row by row and put in place whole or not at all.

A data set is a folder: `tokens.bin` (uint32, all rows after each other), `trained.bin` (uint8, 1
where the token is labelled), `offsets.bin` (int64, the first token of each row, then the number of
all), `places.bin` (int64: the place in report.json's `files`, the line and the item, or 0, of each
row), and `report.json`.
"""

import json
import os
import shutil
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from headrace.storage import sync_directory

TOKENS, TRAINED, OFFSETS, REPORT = "tokens.bin", "trained.bin", "offsets.bin", "report.json"
PLACES = "places.bin"
FILES = (TOKENS, TRAINED, OFFSETS, PLACES, REPORT)


class TokenSink(Protocol):
    """Takes the rows of a data set. `offsets`: the first token of each, then the number of all.

    Whoever appends the rows tells their `places`: file, line and item of each.
    """

    offsets: "array[int]"
    places: "array[int]"

    def append(self, ids: Sequence[int], trained: Sequence[bool]) -> None:
        """Take one row: token ids and, for each, whether it is labelled."""


class RowLengthsOnly:
    """Keeps of rows how long they are and where they come from; 32 bytes a row."""

    def __init__(self) -> None:
        self.offsets = array("q", [0])
        self.places = array("q")

    def append(self, ids: Sequence[int], trained: Sequence[bool]) -> None:
        """Take one row."""
        self.offsets.append(self.offsets[-1] + len(ids))


class TokenWriter:
    """Appends rows to the files of a data set; memory grows by 32 bytes a row.

    Whoever appends the rows tells their `places`.
    """

    def __init__(self, tokens: BinaryIO, trained: BinaryIO) -> None:
        self._tokens = tokens
        self._trained = trained
        self.offsets = array("q", [0])
        self.places = array("q")
        self.report: Mapping[str, Any] | None = None

    def append(self, ids: Sequence[int], trained: Sequence[bool]) -> None:
        """Write one row: token ids and, for each, whether it is labelled."""
        self._tokens.write(np.asarray(ids, dtype=np.uint32).tobytes())
        self._trained.write(np.asarray(trained, dtype=np.uint8).tobytes())
        self.offsets.append(self.offsets[-1] + len(ids))

    def finish(self, report: Mapping[str, Any]) -> None:
        """Say that the data set is complete, and what its report is."""
        self.report = report


@contextmanager
def new_dataset(out_dir: Path) -> Iterator[TokenWriter]:
    """Write a data set beside `out_dir` and move it there once it is finished and on disk.

    A data set of that name is replaced. Without `finish`, or after an error, nothing changes.
    """
    partial = out_dir.with_name(f".{out_dir.name}.partial")
    _remove(partial)
    partial.mkdir(parents=True)
    try:
        with (partial / TOKENS).open("wb") as tokens, (partial / TRAINED).open("wb") as trained:
            writer = TokenWriter(tokens, trained)
            yield writer
        if writer.report is not None:
            (partial / OFFSETS).write_bytes(writer.offsets.tobytes())
            (partial / PLACES).write_bytes(writer.places.tobytes())
            (partial / REPORT).write_text(json.dumps(writer.report, indent=1) + "\n")
            _put_in_place(partial, out_dir)
    finally:
        _remove(partial)


def _put_in_place(partial: Path, out_dir: Path) -> None:
    for path in partial.iterdir():
        _sync_file(path)
    sync_directory(partial)
    _remove(out_dir)
    partial.rename(out_dir)
    sync_directory(out_dir.parent)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
