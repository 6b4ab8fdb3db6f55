"""The rows of a file judged by their form alone, without a tokenizer."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .config import Objective
from .data_report import Place
from .meter import Meter, Progress
from .row_files import RowFile
from .row_index import RowIndex
from .row_json import dump
from .row_types import MAX_LINE_BYTES, RowFormat, RowProblem, said
from .rows import RowReader

MAX_LISTED_PROBLEMS = 20
LOOK_BYTES = 4 * 2**20  # of a row; a million empty objects, which take a second, are within it


@dataclass(frozen=True, slots=True, kw_only=True)
class LineProblem:
    """A row that cannot be used: where it is, a reason to count by, and the words."""

    place: Place
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.place.within}: {self.message}"

    @property
    def line(self) -> int:
        """Its line, counted from 1; 0 in a Parquet file."""
        return self.place.line


@dataclass(frozen=True, slots=True, kw_only=True)
class FormCheck:
    """What the forms of rows say: rows seen, of which formats, the first problems, twins.

    `form` is the file's; `objective` what its rows train, None where none of them can be used.
    `reasons` counts all problems. `complete` is false when the reading was ended before the file.
    """

    form: str
    objective: Objective | None
    num_rows: int
    complete: bool
    formats: dict[RowFormat, int]
    problems: list[LineProblem]
    reasons: dict[str, int]
    index: RowIndex = field(repr=False)


def check_rows(
    file: Path,
    *,
    limit_seconds: float | None = None,
    max_problems: int | None = MAX_LISTED_PROBLEMS,
    objective: Objective | None = None,
    columns: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> FormCheck:
    """Judge rows by their form, for at most that long, until so many problems are found (None: all
    rows), or until `stop` says so.

    Within a time, rows of more than `LOOK_BYTES` are not looked at, since one could take longer.
    All rows have to serve the `objective`, or that of the first; `columns` as in `RowReader`. Blank
    lines are not rows. An empty file is 0 rows and no problem. Memory grows by some forty bytes a
    row. DataProblem when the file itself cannot be read.
    """
    until = time.monotonic() + limit_seconds if limit_seconds is not None else float("inf")
    num_rows, complete = 0, True
    problems: list[LineProblem] = []
    reasons: Counter[str] = Counter()
    formats: Counter[RowFormat] = Counter()
    index = RowIndex()
    reader = RowReader(objective, columns)
    meter = Meter([file], progress)
    with RowFile(file, until=until) as rows:
        for text in rows:
            if limit_seconds is not None and LOOK_BYTES < len(text.data) <= MAX_LINE_BYTES:
                num_rows, complete = num_rows + 1, False
            elif text.data.strip():
                num_rows += 1
                place, row = text.place, reader.read(text.data)
                if isinstance(row, RowProblem):
                    reasons[row.code] += 1
                    if len(problems) < MAX_LISTED_PROBLEMS:
                        problems.append(
                            LineProblem(place=place, code=row.code, message=row.message)
                        )
                else:
                    formats[row.format] += 1
                    index.add(place, *map(dump, said(row)))
            meter.at(rows.bytes_read)
            enough = max_problems is not None and reasons.total() >= max_problems
            if enough or time.monotonic() > until or stop():
                complete = False
                break
        complete = complete and not rows.ended_early
        meter.tell()
    return FormCheck(
        form=rows.form,
        objective=reader.objective,
        num_rows=num_rows,
        complete=complete,
        formats=dict(formats),
        problems=problems,
        reasons=dict(reasons),
        index=index,
    )
