"""The ledger of a run: the mean loss of every training row in every epoch, in one small file.

`row_losses.bin` in the run's folder is float32, (epochs, rows), minus one where a row has not been
seen. It is written before the step is committed, so that a resumed run finds what it needs; a
step that is done again writes the same again.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from .config import TrainConfig
from .data import Microbatch, TokenDataset
from .example import NOT_TRAINED
from .outliers import UNSEEN, Floats, find_outliers
from .report import ROW_LOSS_KINDS, Emit, RunEvent
from .row_order import Ints, epoch_order, steps_per_epoch

LEDGER = "row_losses.bin"
SAID = 5  # rows of each kind whose place is in the message
_WIDTH = 4  # bytes of a loss


class RowLosses:
    """Keeps the ledger, and tells at the end of an epoch and of the run which rows stand out."""

    def __init__(
        self, run_dir: Path, config: TrainConfig, data: TokenDataset, total_steps: int, emit: Emit
    ) -> None:
        self._path = run_dir / LEDGER
        self._data = data
        self._seed = config.seed
        self._steps = steps_per_epoch(data.num_rows, config.batch_rows)
        self._total_steps = total_steps
        self._emit = emit
        num_epochs = -(-total_steps // self._steps)
        if not self._path.exists() or self._path.stat().st_size != self._at(num_epochs, 0):
            empty = np.full(data.num_rows, UNSEEN, dtype=np.float32).tobytes()
            with self._path.open("wb") as file:
                for _ in range(num_epochs):
                    file.write(empty)

    def take(self, step: int, batches: Sequence[Microbatch], losses: Tensor) -> None:
        """Write down what each row of a step came to; `losses` are those of its targets, fp32 on
        the host, microbatch by microbatch."""
        epoch = (step - 1) // self._steps
        with self._path.open("r+b") as file:
            for row, loss in _means(batches, losses.numpy()):
                os.pwrite(file.fileno(), np.float32(loss).tobytes(), self._at(epoch, row))
        if step % self._steps == 0 or step == self._total_steps:
            self._tell(step, epoch + 1)

    def _at(self, epoch: int, row: int) -> int:
        return _WIDTH * (epoch * self._data.num_rows + row)

    def _epoch(self, epoch: int) -> Floats:
        count, place = self._data.num_rows, self._at(epoch, 0)
        return np.fromfile(self._path, dtype=np.float32, count=count, offset=place)

    def _epochs(self, count: int) -> Iterator[tuple[Floats, Ints]]:
        for epoch in range(count):
            order = epoch_order(self._data.num_rows, seed=self._seed, epoch=epoch)
            yield self._epoch(epoch), order

    def _tell(self, step: int, num_epochs: int) -> None:
        found = find_outliers(self._epochs(num_epochs), self._data.num_rows)
        if found is None:
            return
        listed = {*found.above[1], *found.below[1], *found.not_finite[1]}
        losses = {row: self._losses(row, num_epochs) for row in listed}

        def told(kind: tuple[int, list[int]]) -> dict[str, Any]:
            count, rows = kind
            return {"count": count, "rows": [self._row(row, losses[row]) for row in rows]}

        kinds = {kind: told(getattr(found, kind)) for kind in ROW_LOSS_KINDS}
        self._emit(
            RunEvent(
                type="row_losses",
                message=_sentence(kinds, num_epochs),
                step=step,
                data={"num_rows": self._data.num_rows, "medians": found.medians, **kinds},
            )
        )

    def _losses(self, row: int, num_epochs: int) -> list[float | None]:
        """A row's loss in each epoch; None where it is not known, or no number."""
        with self._path.open("rb") as file:
            values = [
                np.frombuffer(os.pread(file.fileno(), _WIDTH, self._at(i, row)), np.float32)[0]
                for i in range(num_epochs)
            ]
        return [float(v) if np.isfinite(v) and v != UNSEEN else None for v in values]

    def _row(self, row: int, losses: list[float | None]) -> dict[str, Any]:
        place = self._data.place(row)
        where = {name: place and getattr(place, name) for name in ("file", "line", "item")}
        return {"row": row, **where, "losses": losses}


def open_row_losses(
    run_dir: Path, config: TrainConfig, data: TokenDataset, total_steps: int, emit: Emit
) -> RowLosses | None:
    """The ledger of a run; None where it keeps none: a preference is no row of one loss a token."""
    if not config.row_losses or config.objective != "supervised":
        return None
    return RowLosses(run_dir, config, data, total_steps, emit)


def _means(batches: Sequence[Microbatch], losses: Floats) -> Iterator[tuple[int, float]]:
    """Each row that predicts something and the mean over what it predicts."""
    start = 0
    for batch in batches:
        for row, count in zip(batch.row_indices, _targets_of_rows(batch), strict=True):
            if count:
                yield row, float(losses[start : start + count].mean(dtype=np.float64))
            start += count


def _targets_of_rows(batch: Microbatch) -> list[int]:
    """How many targets each row has. The targets of a microbatch come row by row."""
    predicted = (batch.labels[:, 1:] != NOT_TRAINED).numpy()
    if not batch.packed:
        found: list[int] = predicted.sum(axis=1).tolist()
        return found
    stops = batch.lengths.cumsum(0).numpy()[: len(batch.row_indices)] - 1
    up_to = np.concatenate([[0], np.cumsum(predicted[0])])[stops]
    counts: list[int] = np.diff(up_to, prepend=0).tolist()
    return counts


def _sentence(told: Mapping[str, Mapping[str, Any]], num_epochs: int) -> str:
    """What stands out, with the first places of each kind."""
    when = "in every epoch so far" if num_epochs > 1 else "in this epoch"
    kinds = [
        f"{found['count']} {ROW_LOSS_KINDS[kind]} ({_places(found['rows'], found['count'])})"
        for kind, found in told.items()
        if found["count"]
    ]
    if not kinds:
        return f"no row's loss stands out {when}"
    return f"rows whose loss stands out {when}: {'; '.join(kinds)}"


def _places(rows: Sequence[Mapping[str, Any]], count: int) -> str:
    """The first of some rows, by the lines of their file, or by their number among those used."""
    first = rows[:SAID]
    if all(row["line"] is None for row in first):
        said = "row " + ", ".join(str(row["row"] + 1) for row in first)
    else:
        said = "; ".join(
            f"{file}, line {', '.join(str(row['line']) for row in some)}"
            for file, some in groupby(first, key=itemgetter("file"))
        )
    return said + (", …" if count > len(first) else "")
