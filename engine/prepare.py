"""From training files to a data set of tokens and labels, with an account of every row."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .config import Objective
from .data_report import DataProblem, DataReport, Overlong
from .example import ChatTokenizer
from .form_check import FormCheck, LineProblem, check_rows
from .labels import TrainOn
from .meter import Meter, Progress
from .row_account import RowAccount, RowRules
from .row_files import RowFile
from .row_index import RowIndex
from .token_files import RowLengthsOnly, TokenSink, new_dataset

__all__ = [
    "DataProblem",
    "DataReport",
    "FormCheck",
    "LineProblem",
    "RowFile",
    "RowIndex",
    "check_dataset",
    "check_rows",
    "prepare_dataset",
]


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
    columns: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> DataReport:
    """Tokenize and label the rows of `files` into the folder `out_dir`; replace what was there.

    Rows stream through; memory grows by some forty bytes a row. `max_seq_len` is in tokens;
    `vocab_size` is the model's, whose ids end below it;
    `overlong` says what becomes of longer rows, `train_on` what of a row is trained;
    the report tells what padding would cost in steps of `batch_rows`. An `index`
    that is given takes up the rows; give it as `training` with the validation files, and the rows
    that are in both are counted. `objective` says what rows are wanted: answers, or preferences;
    left open, the first row decides, and the report tells. `columns` names the files' columns by
    the keys of a format: {"prompt": "question"}. `progress` gets bytes read and bytes in
    all, about four times a second; what it raises ends the work and leaves `out_dir` as it was.
    DataProblem when a row cannot be used, or when nothing is left to train on.
    """
    rules = RowRules(
        max_seq_len=max_seq_len,
        vocab_size=vocab_size,
        overlong=overlong,
        train_on=train_on,
        objective=objective,
        columns=columns or {},
        batch_rows=batch_rows,
        microbatch_rows=microbatch_rows,
    )
    with new_dataset(out_dir) as writer:
        report = _read(
            files, tokenizer, writer, rules, index=index, training=training, progress=progress
        )
        report.check()
        writer.finish(report.to_dict())
    return report


def check_dataset(
    files: Sequence[Path],
    *,
    tokenizer: ChatTokenizer,
    rules: RowRules,
    index: RowIndex | None = None,
    training: RowIndex | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> DataReport:
    """The report that `prepare_dataset` would give, problems and all; nothing is written.

    When `stop` says so the reading ends, and the report is of the rows up to there. DataProblem
    when a file cannot be read at all.
    """
    return _read(
        files, tokenizer, RowLengthsOnly(), rules, index=index, training=training,
        progress=progress, stop=stop,
    )  # fmt: skip


def _read(
    files: Sequence[Path],
    tokenizer: ChatTokenizer,
    sink: TokenSink,
    rules: RowRules,
    *,
    index: RowIndex | None,
    training: RowIndex | None,
    progress: Progress | None,
    stop: Callable[[], bool] = lambda: False,
) -> DataReport:
    account = RowAccount(tokenizer, sink, rules, index=RowIndex() if index is None else index)
    meter = Meter(files, progress)
    complete = True
    for path in files:
        with RowFile(path) as file:
            account.open_file(file)
            for text in file:
                meter.at(file.bytes_read)
                account.take(text)
                if stop():
                    complete = False
                    break
        if not complete:
            break
        meter.end_file(file.size)
    meter.tell()
    return account.report(training, complete=complete)
