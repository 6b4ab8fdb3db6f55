"""Training files as rows, whatever holds them: lines or one JSON array, packed or not, or Parquet.

What a file is, its first bytes say, never its name. Rows stream: memory holds one row and a buffer.
"""

import io
import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from .data_report import DataProblem, Place
from .parquet_rows import ParquetRows
from .row_arrays import split_array
from .row_json import BYTE_ORDER_MARK
from .row_types import MAX_LINE_BYTES
from .unpacking import DAMAGED, READ_BYTES, Measured, unpack

PARQUET = b"PAR1"
GRACE_SECONDS = 5.0  # behind the time for reading, within which whoever takes the rows may stop
OTHER_CONTENTS = (  # first bytes, and the way out
    (b"PK\x03\x04", "is a zip archive; unpack it"),
    (b"BZh", "is compressed with bzip2; unpack it, or compress it with gzip or zstd"),
    (b"\xfd7zXZ\x00", "is compressed with xz; unpack it, or compress it with gzip or zstd"),
    (b"\xff\xfe", "is UTF-16; write it as UTF-8"),
    (b"\xfe\xff", "is UTF-16; write it as UTF-8"),
    (b"{\x00", "is UTF-16; write it as UTF-8"),
    (b"[\x00", "is UTF-16; write it as UTF-8"),
    (b"version https://git-lfs", "is a pointer of Git LFS, not the data; fetch it: git lfs pull"),
    (b"<!", "is a web page, not the data; download the file itself"),
    (b"<html", "is a web page, not the data; download the file itself"),
    (b"ARROW1", "is an Arrow file; write it as Parquet, or its rows as JSON, one object a line"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RowText:
    """The bytes of a row, and where they are."""

    place: Place
    data: bytes


class RowFile:
    """The rows of a file, once and in order. A context manager.

    DataProblem when the file is of another kind, damaged or cut off. A line or item beyond
    MAX_LINE_BYTES is never held: of a line its beginning comes, an item ends the reading.

    What little was compressed can stand for a line of any length, or an item of millions of parts:
    `until`, on the monotonic clock, the end of such a one is looked for, then the rows end early.
    """

    def __init__(self, path: Path, *, until: float = math.inf) -> None:
        self.path = path
        self.size = path.stat().st_size
        is_table = self.is_table(path)
        self._rows: _Source = _Table(path) if is_table else _Texts(path, self.size, until)
        self.form = self._rows.form

    @staticmethod
    def is_table(path: Path) -> bool:
        """Whether the file is a Parquet one, by its first bytes."""
        with path.open("rb") as file:
            return file.read(len(PARQUET)) == PARQUET

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()

    def __iter__(self) -> Iterator[RowText]:
        return iter(self._rows)

    @property
    def bytes_read(self) -> int:
        """Bytes of the file that were read so far, as they lie on disk."""
        return self._rows.bytes_read

    @property
    def share_taken(self) -> float:
        """How much of the file the rows that came are, about: 0 to 1."""
        return self._rows.share_taken

    @property
    def ended_early(self) -> bool:
        """Whether the rows ended in one whose end was not found in time."""
        return self._rows.ended_early

    def describe(self) -> dict[str, Any]:
        """Name, bytes, SHA-256 of what was read, and the form of the file."""
        return {
            "name": self.path.name,
            "bytes": self.size,
            "sha256": self._rows.digest(),
            "form": self.form,
        }


class _Source(Protocol):
    """What gives rows, by the kind of file."""

    form: str

    @property
    def ended_early(self) -> bool: ...

    def __iter__(self) -> Iterator[RowText]: ...

    @property
    def bytes_read(self) -> int: ...

    @property
    def share_taken(self) -> float: ...

    def digest(self) -> str: ...

    def close(self) -> None: ...


class _Table:
    """The rows of a Parquet file. They lie on no line: line 0, and the number of the row."""

    form = "Parquet"
    ended_early = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size
        self._rows = ParquetRows(path)

    def __iter__(self) -> Iterator[RowText]:
        for number, row in enumerate(self._rows, 1):
            yield RowText(Place(file=self._path.name, line=0, item=number), row)

    @property
    def bytes_read(self) -> int:
        return round(self.share_taken * self._size)

    @property
    def share_taken(self) -> float:
        return self._rows.share_taken

    def digest(self) -> str:
        return self._rows.digest()

    def close(self) -> None:
        self._rows.close()


class _Texts:
    """The lines of a file, or the items of its array."""

    def __init__(self, path: Path, size: int, until: float) -> None:
        self._path = path
        self._size = size
        self._until = until
        self._is_over = False
        self._measured = Measured(path, until=until + GRACE_SECONDS)
        self._taken = 0  # bytes of the rows that came, unpacked
        try:
            plain = io.BufferedReader(self._measured, READ_BYTES)
            self._refuse_others(plain.peek(READ_BYTES))
            self._content, self._packing = unpack(plain, name=path.name)
            begin = self._begin().lstrip()
            self._is_array = begin.startswith(b"[")
            self._check_one_line(begin)
        except BaseException:
            self._measured.close()
            raise
        kind = "JSON array" if self._is_array else "JSONL"
        self.form = f"{kind}, {self._packing}" if self._packing else kind

    def __iter__(self) -> Iterator[RowText]:
        with self._blaming():
            for text in self._items() if self._is_array else self._lines():
                if self._measured.is_late:
                    return  # with half a row, it may be
                self._taken += len(text.data)
                yield text

    @property
    def bytes_read(self) -> int:
        return self._measured.num_bytes

    @property
    def share_taken(self) -> float:
        done = self.bytes_read if self._packing else self._taken
        return min(1.0, done / max(1, self._size))

    def digest(self) -> str:
        return self._measured.digest.hexdigest()

    def close(self) -> None:
        self._content.close()
        self._measured.close()

    def _refuse_others(self, first: bytes) -> None:
        for magic, what in OTHER_CONTENTS:
            if first.startswith(magic):
                raise DataProblem(f"{self._path.name} {what}")

    def _begin(self) -> bytes:
        with self._blaming():
            return self._content.peek(READ_BYTES).removeprefix(BYTE_ORDER_MARK)
        return b""  # nothing came in time

    def _check_one_line(self, begin: bytes) -> None:
        if re.match(rb'\{[ \t\r]*\n\s*"', begin):
            raise DataProblem(
                f"{self._path.name}: its first object is spread over several lines; write one "
                "object a line (jq -c does it), or all rows in one array"
            )

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        try:
            yield
        except DAMAGED as error:
            if self._measured.is_late:
                return
            reason = f"{self._path.name}: its {self._packing} data is damaged or cut off ({error})"
            raise DataProblem(f"{reason}; compress it anew") from error

    def _is_late(self) -> bool:
        """Whether the rows end here, though the file does not."""
        self._is_over = time.monotonic() > self._until
        return self._is_over

    @property
    def ended_early(self) -> bool:
        return self._is_over or self._measured.is_late

    def _lines(self) -> Iterator[RowText]:
        """Lines with their numbers; of one above the limit, enough to see that it is too long."""
        number = 0
        while line := self._content.readline(MAX_LINE_BYTES + 1):
            number += 1
            yield RowText(Place(file=self._path.name, line=number), line)
            while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                if self._is_late():
                    return
                line = self._content.readline(MAX_LINE_BYTES + 1)

    def _items(self) -> Iterator[RowText]:
        items = split_array(self._content.read, name=self._path.name, enough=self._is_late)
        for number, (line, item) in enumerate(items, 1):
            yield RowText(Place(file=self._path.name, line=line, item=number), item)
