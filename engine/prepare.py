"""From JSONL files to a data set of tokens and labels, with an account of every row."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .chat import ChatTokenizer
from .data_report import DataProblem, DataReport, Overlong
from .row_account import RowAccount
from .rows import MAX_LINE_BYTES, RowProblem, parse_row
from .token_files import new_dataset

__all__ = ["DataProblem", "DataReport", "LineProblem", "check_rows", "prepare_dataset"]

MAX_LISTED_PROBLEMS = 20
PROGRESS_SECONDS = 0.25

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineProblem:
    """A row that cannot be used: its line, counted from 1, a reason to count by, and the words."""

    line: int
    code: str
    message: str


def prepare_dataset(
    files: Sequence[Path],
    *,
    tokenizer: ChatTokenizer,
    out_dir: Path,
    max_seq_len: int,
    vocab_size: int,
    overlong: Overlong = "error",
    progress: Progress | None = None,
) -> DataReport:
    """Tokenize and label the rows of `files` into the folder `out_dir`; replace what was there.

    Rows stream through; memory grows by some forty bytes a row. `max_seq_len` is in tokens;
    `vocab_size` is the model's, whose ids end below it;
    `overlong` says what becomes of longer rows. `progress` gets bytes read and bytes in all, about
    four times a second; what it raises ends the work and leaves `out_dir` as it was.
    DataProblem when a row cannot be used, or when nothing is left to train on.
    """
    if not tokenizer.chat_template:
        raise DataProblem("the model has no chat template, so chat rows have no form it knows")
    with new_dataset(out_dir) as writer:
        account = RowAccount(
            tokenizer, writer, max_seq_len=max_seq_len, vocab_size=vocab_size, overlong=overlong
        )
        meter = _Meter(files, progress)
        for path in files:
            account.open_file(path)
            for number, line in _lines(path):
                meter.add(len(line))
                account.take(number, line)
        meter.tell()
        report = account.report()
        report.check()
        writer.finish(report.to_dict())
    return report


def check_rows(file: Path, *, limit_seconds: float) -> tuple[int, list[LineProblem]]:
    """Judge rows by their form alone, for at most that long: rows seen and the first 20 problems.

    Needs no tokenizer. Blank lines are not rows. An empty file is 0 rows and no problem.
    """
    until = time.monotonic() + limit_seconds
    num_rows, problems = 0, []
    for number, line in _lines(file):
        if line.strip():
            num_rows += 1
            row = parse_row(line)
            if isinstance(row, RowProblem):
                problems.append(LineProblem(line=number, code=row.code, message=row.message))
        if len(problems) == MAX_LISTED_PROBLEMS or time.monotonic() > until:
            break
    return num_rows, problems


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers; of a line above the limit, enough to see that it is too long."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            yield number, line
            while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                line = file.readline(MAX_LINE_BYTES + 1)


class _Meter:
    """Tells progress in bytes, not more often than people can see."""

    def __init__(self, files: Sequence[Path], progress: Progress | None) -> None:
        self._progress = progress
        self._done = 0
        self._total = sum(path.stat().st_size for path in files)
        self._next = 0.0

    def add(self, num_bytes: int) -> None:
        self._done += num_bytes
        if time.monotonic() >= self._next:
            self.tell()

    def tell(self) -> None:
        self._next = time.monotonic() + PROGRESS_SECONDS
        if self._progress is not None:
            self._progress(self._done, self._total)
