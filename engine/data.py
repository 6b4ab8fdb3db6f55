"""The prepared data set: rows by number, and the microbatches of any step, without replay.

Rows are read when they are asked for, so that a large data set costs sixteen bytes of memory a row.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.storage import round_up

from .config import NUM_ANSWERS, TrainConfig
from .data_report import DataProblem, Place
from .example import NOT_TRAINED
from .packing import Arrangement, row_lengths, step_rows
from .row_order import Ints
from .token_files import OFFSETS, PLACES, REPORT, TOKENS, TRAINED

PAD_TOKEN = 0  # any id will do: padding is never labelled, and no token of a row can see it


@dataclass(frozen=True, slots=True)
class TokenDataset:
    """A prepared data set. `lengths` are the tokens that each row takes of a microbatch, int64;
    `num_trained_tokens` counts the labels that are predicted (a label on a row's first token is
    not). A row has one answer or, of preferences, two: the chosen one, then the rejected one.
    `offsets` are those of the answers, `reference` their log-probabilities under the model before
    training, float64 (rows, 2), once they are known."""

    path: Path
    offsets: Ints
    lengths: Ints
    num_trained_tokens: int
    num_answers: int = 1
    reference: npt.NDArray[np.float64] | None = None

    @classmethod
    def open(cls, path: Path | str, *, packed: bool = True) -> Self:
        """Open a folder that `prepare_dataset` wrote. DataProblem when files are cut or missing.

        `packed`: the answers of a row lie one behind the other, else padded side by side.
        """
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
        count = NUM_ANSWERS[report.get("objective", "supervised")]
        lengths = row_lengths(offsets, count, packed=packed)
        return cls(path, offsets, lengths, int(report["trained_tokens"]), count)

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
        """Token ids and labels of row i, both int64 (tokens,); -100 where not trained.

        Of preferences: of the chosen answer of row 0, the rejected one, the chosen one of row 1 …
        """
        start, stop = int(self.offsets[i]), int(self.offsets[i + 1])
        tokens = np.fromfile(self.path / TOKENS, np.uint32, count=stop - start, offset=4 * start)
        trained = np.fromfile(self.path / TRAINED, np.uint8, count=stop - start, offset=start)
        ids = tokens.astype(np.int64)
        return ids, np.where(trained == 1, ids, NOT_TRAINED)

    def place(self, row: int) -> Place | None:
        """Where a row comes from; None where that was not written down."""
        path = self.path / PLACES
        if not path.exists():
            return None
        found = np.fromfile(path, np.int64, count=3, offset=3 * 8 * row)
        if found.size < 3:
            return None
        file, line, item = found.tolist()
        files = json.loads((self.path / REPORT).read_bytes())["files"]
        return Place(file=files[file]["name"], line=line, item=item or None)

    def answers(self, row: int) -> list[tuple[Ints, Ints]]:
        """All answers of a row, each as `row` gives it."""
        first = row * self.num_answers
        return [self.row(i) for i in range(first, first + self.num_answers)]


def open_rows(config: TrainConfig, path: str) -> TokenDataset:
    """A run's prepared data set. DataProblem when its rows do not serve the run's objective."""
    data = TokenDataset.open(path, packed=config.packing == "on")
    if data.num_answers != NUM_ANSWERS[config.objective]:
        kinds = {1: "rows of one answer", 2: "preferences"}
        raise DataProblem(
            f"{path} holds {kinds[data.num_answers]}, and {config.objective} trains on "
            f"{kinds[NUM_ANSWERS[config.objective]]}; prepare other data, or choose the objective"
        )
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Rows that pass a layer together: padded side by side, or packed one behind the other.

    `ids` and `labels` are int64: (rows, tokens), padded on the right, or (1, tokens) when packed;
    padding has token 0 and label -100. `num_tokens` leaves padding out; `num_trained` counts the
    labels that are predicted, `labels[:, 1:]`: the first token of a packed row is predicted from
    nothing, so its label is -100. `lengths` are those of the rows, int64; packed, the padding
    behind them is one more, and zeros fill up to one more than a step has rows, so that their
    number never changes a shape. In all this both answers of a preference are rows; it is one in
    `row_indices` alone, and its answers are never apart; `reference` has their log-probabilities
    before training, float64 (preferences, 2), once they are known.
    """

    ids: Tensor
    labels: Tensor
    row_indices: tuple[int, ...]
    num_tokens: int
    num_trained: int
    lengths: Tensor
    packed: bool
    reference: Tensor | None = None


def step_microbatches(
    dataset: TokenDataset, arrangement: Arrangement, *, step: int
) -> list[Microbatch]:
    """The microbatches of a step, counted from 1: a function of its arguments alone.

    Within the step the longest rows come first, so that rows of like length share padding, packed
    rows leave little room, and memory peaks at the start.
    """
    return _arrange(dataset, arrangement, step_rows(dataset.lengths, arrangement, step))


def eval_microbatches(
    dataset: TokenDataset,
    arrangement: Arrangement,
    *,
    wanted: npt.NDArray[np.bool_] | None = None,
) -> Iterator[Microbatch]:
    """All rows once: in the order of the file, as many as a step has arranged at a time.

    Of `wanted` rows (a flag each) those, with the others of as many: arranged as among all.
    """
    for start in range(0, dataset.num_rows, arrangement.batch_rows):
        rows = np.arange(start, min(start + arrangement.batch_rows, dataset.num_rows))
        if wanted is not None and not wanted[rows].any():
            continue
        longest_first = rows[np.argsort(-dataset.lengths[rows], kind="stable")]
        yield from _arrange(dataset, arrangement, longest_first)


def _arrange(dataset: TokenDataset, arrangement: Arrangement, rows: Ints) -> list[Microbatch]:
    groups = [rows[group].tolist() for group in arrangement.groups(dataset.lengths[rows])]
    return [_microbatch(dataset, group, arrangement) for group in groups]


def _microbatch(dataset: TokenDataset, rows: Sequence[int], arrangement: Arrangement) -> Microbatch:
    answers = [one for row in rows for one in dataset.answers(row)]
    batch = make_microbatch(answers, rows, arrangement)
    if dataset.reference is None:
        return batch
    return replace(batch, reference=torch.from_numpy(dataset.reference[list(rows)]))


def make_microbatch(
    rows: Sequence[tuple[Ints, Ints]], indices: Sequence[int], arrangement: Arrangement
) -> Microbatch:
    """One microbatch of these rows' answers (token ids and labels), in this order."""
    packed = arrangement.microbatch_tokens is not None
    ids, labels, lengths = (_packed if packed else _padded)(rows, arrangement)
    return Microbatch(
        ids=ids,
        labels=labels,
        row_indices=tuple(indices),
        num_tokens=sum(len(row_ids) for row_ids, _ in rows),
        num_trained=int((labels[:, 1:] != NOT_TRAINED).sum()),
        lengths=lengths,
        packed=packed,
    )


def _padded(
    rows: Sequence[tuple[Ints, Ints]], arrangement: Arrangement
) -> tuple[Tensor, Tensor, Tensor]:
    lengths = torch.tensor([len(row_ids) for row_ids, _ in rows])
    ids, labels = _empty(len(rows), round_up(int(lengths.max()), arrangement.multiple))
    for place, (row_ids, row_labels) in enumerate(rows):
        ids[place, : len(row_ids)] = torch.from_numpy(row_ids)
        labels[place, : len(row_ids)] = torch.from_numpy(row_labels)
    return ids, labels, lengths


def _packed(
    rows: Sequence[tuple[Ints, Ints]], arrangement: Arrangement
) -> tuple[Tensor, Tensor, Tensor]:
    most = arrangement.batch_rows * arrangement.num_answers
    lengths = torch.zeros(most + 1, dtype=torch.int64)
    lengths[: len(rows)] = torch.tensor([len(row_ids) for row_ids, _ in rows])
    num_tokens = int(lengths.sum())
    ids, labels = _empty(1, round_up(num_tokens, arrangement.multiple))
    lengths[len(rows)] = ids.shape[1] - num_tokens
    ids[0, :num_tokens] = torch.from_numpy(np.concatenate([row_ids for row_ids, _ in rows]))
    labels[0, :num_tokens] = torch.from_numpy(np.concatenate([labels for _, labels in rows]))
    labels[0, lengths.cumsum(0)[: len(rows)] - lengths[: len(rows)]] = NOT_TRAINED
    return ids, labels, lengths


def _empty(num_rows: int, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Ids and labels that are nothing but padding."""
    ids = torch.full((num_rows, num_tokens), PAD_TOKEN, dtype=torch.int64)
    return ids, torch.full_like(ids, NOT_TRAINED)
