"""From training files to a data set of tokens and labels, with an account of every row."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .chat import ChatTokenizer
from .config import Objective
from .data_report import DataProblem, DataReport, Overlong
from .labels import TrainOn
from .row_account import RowAccount
from .row_files import RowFile
from .row_index import RowIndex
from .row_json import dump
from .row_types import RowFormat, RowProblem, said
from .rows import RowReader
from .token_files import new_dataset

__all__ = [
    "DataProblem",
    "DataReport",
    "FormCheck",
    "LineProblem",
    "RowFile",
    "RowIndex",
    "check_rows",
    "prepare_dataset",
]

MAX_LISTED_PROBLEMS = 20
PROGRESS_SECONDS = 0.25

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineProblem:
    """A row that cannot be used: its line, counted from 1, a reason to count by, and the words.

    `item` counts the items of a JSON array.
    """

    line: int
    code: str
    message: str
    item: int | None = None

    def __str__(self) -> str:
        where = f"line {self.line}" + (f" (item {self.item})" if self.item else "")
        return f"{where}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormCheck:
    """What the forms of rows say: rows seen, of which formats, the first problems, twins.

    `form` is the file's; `objective` what its rows train, None where none of them can be used.
    `complete` is false when time or problems ended the reading.
    """

    form: str
    objective: Objective | None
    num_rows: int
    complete: bool
    formats: dict[RowFormat, int]
    problems: list[LineProblem]
    index: RowIndex = field(repr=False)


def prepare_dataset(
    files: Sequence[Path],
    *,
    tokenizer: ChatTokenizer,
    out_dir: Path,
    max_seq_len: int,
    vocab_size: int,
    overlong: Overlong = "error",
    train_on: TrainOn = "assistant",
    batch_rows: int = 8,
    microbatch_rows: int = 4,
    index: RowIndex | None = None,
    training: RowIndex | None = None,
    objective: Objective | None = None,
    progress: Progress | None = None,
) -> DataReport:
    """Tokenize and label the rows of `files` into the folder `out_dir`; replace what was there.

    Rows stream through; memory grows by some forty bytes a row. `max_seq_len` is in tokens;
    `vocab_size` is the model's, whose ids end below it;
    `overlong` says what becomes of longer rows, `train_on` what of a row is trained;
    the report tells what padding would cost in steps of `batch_rows`. An `index`
    that is given takes up the rows; give it as `training` with the validation files, and the rows
    that are in both are counted. `objective` says what rows are wanted: answers, or preferences;
    left open, the first row decides, and the report tells. `progress` gets bytes read and bytes in
    all, about four times a second; what it raises ends the work and leaves `out_dir` as it was.
    DataProblem when a row cannot be used, or when nothing is left to train on.
    """
    with new_dataset(out_dir) as writer:
        account = RowAccount(
            tokenizer,
            writer,
            max_seq_len=max_seq_len,
            vocab_size=vocab_size,
            overlong=overlong,
            train_on=train_on,
            index=RowIndex() if index is None else index,
            objective=objective,
        )
        meter = _Meter(files, progress)
        for path in files:
            with RowFile(path) as file:
                account.open_file(file)
                for text in file:
                    meter.at(file.bytes_read)
                    account.take(text)
            meter.end_file(file.size)
        meter.tell()
        report = account.report(training, batch_rows=batch_rows, microbatch_rows=microbatch_rows)
        report.check()
        writer.finish(report.to_dict())
    return report


def check_rows(
    file: Path, *, limit_seconds: float, objective: Objective | None = None
) -> FormCheck:
    """Judge rows by their form alone, for at most that long, until 20 problems are found.

    Needs no tokenizer. All rows have to serve the `objective`, or that of the first. Blank lines
    are not rows. An empty file is 0 rows and no problem. DataProblem when the file itself cannot be
    read.
    """
    until = time.monotonic() + limit_seconds
    num_rows, complete = 0, True
    problems: list[LineProblem] = []
    formats: Counter[RowFormat] = Counter()
    index = RowIndex()
    reader = RowReader(objective)
    with RowFile(file) as rows:
        for text in rows:
            if text.data.strip():
                num_rows += 1
                place, row = text.place, reader.read(text.data)
                if isinstance(row, RowProblem):
                    problems.append(
                        LineProblem(
                            line=place.line, item=place.item, code=row.code, message=row.message
                        )
                    )
                else:
                    formats[row.format] += 1
                    index.add(place, *map(dump, said(row)))
            if len(problems) == MAX_LISTED_PROBLEMS or time.monotonic() > until:
                complete = False
                break
    return FormCheck(
        form=rows.form,
        objective=reader.objective,
        num_rows=num_rows,
        complete=complete,
        formats=dict(formats),
        problems=problems,
        index=index,
    )


class _Meter:
    """Tells progress in bytes, not more often than people can see."""

    def __init__(self, files: Sequence[Path], progress: Progress | None) -> None:
        self._progress = progress
        self._done = self._here = 0
        self._total = sum(path.stat().st_size for path in files)
        self._next = 0.0

    def at(self, num_bytes: int) -> None:
        """So many bytes of the present file are read."""
        self._here = num_bytes
        if time.monotonic() >= self._next:
            self.tell()

    def end_file(self, num_bytes: int) -> None:
        """The present file, of that size, is done with."""
        self._done, self._here = self._done + num_bytes, 0

    def tell(self) -> None:
        self._next = time.monotonic() + PROGRESS_SECONDS
        if self._progress is not None:
            self._progress(self._done + self._here, self._total)
