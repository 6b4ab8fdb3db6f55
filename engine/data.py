"""The prepared data set: rows by number, and the microbatches of any step, without replay.

Rows are read when they are asked for, so that a large data set costs sixteen bytes of memory a row.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .chat import NOT_TRAINED
from .data_report import DataProblem
from .token_files import OFFSETS, REPORT, TOKENS, TRAINED

PAD_TOKEN = 0  # any id will do: padding is never labelled, and no earlier token can see it

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenDataset:
    """A prepared data set. `lengths` are tokens per row, int64; `num_trained_tokens` counts the
    labels that are predicted (a label on a row's first token is not)."""

    path: Path
    offsets: Ints
    lengths: Ints
    num_trained_tokens: int

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a folder that `prepare_dataset` wrote. DataProblem when files are cut or missing."""
        path = Path(path)
        try:
            report = json.loads((path / REPORT).read_bytes())
            offsets = np.fromfile(path / OFFSETS, dtype=np.int64)
            sizes = {name: os.stat(path / name).st_size for name in (TOKENS, TRAINED)}
        except FileNotFoundError as error:
            reason = f"{path} is no prepared data set: {error.filename} is missing; prepare it anew"
            raise DataProblem(reason) from error
        num_tokens = int(offsets[-1]) if offsets.size else 0
        wanted = {TOKENS: 4 * num_tokens, TRAINED: num_tokens}
        if offsets.size < 2 or sizes != wanted:
            raise DataProblem(
                f"{path}: the files do not fit together: {sizes} bytes, wanted {wanted} "
                f"for {offsets.size - 1} rows; prepare the data set anew"
            )
        return cls(path, offsets, np.diff(offsets), int(report["trained_tokens"]))

    @property
    def num_rows(self) -> int:
        """Rows of the data set."""
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return int(self.offsets[-1])

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.lengths.max())

    def row(self, i: int) -> tuple[Ints, Ints]:
        """Token ids and labels of row i, both int64 (tokens,); -100 where not trained."""
        start, length = int(self.offsets[i]), int(self.lengths[i])
        tokens = np.fromfile(self.path / TOKENS, np.uint32, count=length, offset=4 * start)
        trained = np.fromfile(self.path / TRAINED, np.uint8, count=length, offset=start)
        ids = tokens.astype(np.int64)
        return ids, np.where(trained == 1, ids, NOT_TRAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Rows that pass a layer together, padded on the right to the longest of them.

    `ids` and `labels` are int64 (rows, tokens); padding has token 0 and label -100. `num_tokens`
    leaves padding out; `num_trained` counts the labels that are predicted, `labels[:, 1:]`.
    """

    ids: Tensor
    labels: Tensor
    row_indices: tuple[int, ...]
    num_tokens: int
    num_trained: int


def num_steps(num_rows: int, *, batch_rows: int, num_epochs: int, max_steps: int | None) -> int:
    """Optimizer steps of a run. The last batch of an epoch may be short; `max_steps` caps."""
    steps = _steps_per_epoch(num_rows, batch_rows) * num_epochs
    return steps if max_steps is None else min(steps, max_steps)


def step_microbatches(
    dataset: TokenDataset, *, step: int, batch_rows: int, microbatch_rows: int, seed: int
) -> list[Microbatch]:
    """The microbatches of a step, counted from 1: a function of its arguments alone.

    Each epoch goes through all rows in an order of its own. Within the step the longest rows come
    first, so that rows of like length share padding and memory peaks at the start.
    """
    epoch, place = divmod(step - 1, _steps_per_epoch(dataset.num_rows, batch_rows))
    order = epoch_order(dataset.num_rows, seed=seed, epoch=epoch)
    rows = order[place * batch_rows : (place + 1) * batch_rows]
    rows = rows[np.argsort(-dataset.lengths[rows], kind="stable")]
    return [
        _microbatch(dataset, rows[start : start + microbatch_rows].tolist())
        for start in range(0, len(rows), microbatch_rows)
    ]


def eval_microbatches(dataset: TokenDataset, *, microbatch_rows: int) -> Iterator[Microbatch]:
    """All rows once, in the order of the file."""
    for start in range(0, dataset.num_rows, microbatch_rows):
        yield _microbatch(dataset, range(start, min(start + microbatch_rows, dataset.num_rows)))


@lru_cache(maxsize=2)
def epoch_order(num_rows: int, *, seed: int, epoch: int) -> Ints:
    """The order of the rows in an epoch (counted from 0), int64: rows sorted by a random key.

    Row i's key is number i of the SplitMix64 stream (Steele, Lea and Flood, 2014) that starts at
    a mix of seed and epoch. Wrapping uint64 arithmetic and a stable sort have one result on every
    machine and in every version of numpy, which its own `permutation` does not promise.
    """
    start = _splitmix64(_splitmix64(np.uint64(seed)) ^ np.uint64(epoch))
    order = np.argsort(_splitmix64(np.arange(num_rows, dtype=np.uint64), start), kind="stable")
    order.setflags(write=False)
    return order


def _splitmix64(index: npt.ArrayLike, start: npt.ArrayLike = 0) -> npt.NDArray[np.uint64]:
    """Number `index`, counted from 0, of the SplitMix64 stream with that start."""
    with np.errstate(over="ignore"):
        z = np.asarray(start, np.uint64) + (
            np.asarray(index, np.uint64) + np.uint64(1)
        ) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _steps_per_epoch(num_rows: int, batch_rows: int) -> int:
    return -(-num_rows // batch_rows)


def _microbatch(dataset: TokenDataset, rows: Sequence[int]) -> Microbatch:
    longest = int(dataset.lengths[list(rows)].max())
    ids = torch.full((len(rows), longest), PAD_TOKEN, dtype=torch.int64)
    labels = torch.full((len(rows), longest), NOT_TRAINED, dtype=torch.int64)
    for place, i in enumerate(rows):
        row_ids, row_labels = dataset.row(i)
        ids[place, : len(row_ids)] = torch.from_numpy(row_ids)
        labels[place, : len(row_ids)] = torch.from_numpy(row_labels)
    return Microbatch(
        ids=ids,
        labels=labels,
        row_indices=tuple(rows),
        num_tokens=int(dataset.lengths[list(rows)].sum()),
        num_trained=int((labels[:, 1:] != NOT_TRAINED).sum()),
    )
