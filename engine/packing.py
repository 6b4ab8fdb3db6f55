"""How the rows of a step become microbatches: which lie together, and how long it makes them.

Packed rows lie one behind the other, each a document that attends to itself alone. A step has the
rows that it has, however they are arranged. Pure, no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from headrace.storage import round_up

from .config import NUM_ANSWERS, Objective, TrainConfig
from .row_order import Ints, epoch_order, num_steps, steps_per_epoch
from .token_files import OFFSETS

TILE_TOKENS = 128  # packed lengths on a GPU: whole tiles for its kernels, few sizes to allocate
STATIC_LENGTHS = 4  # that a microbatch within its budget can have when each is compiled by itself
_CHUNK_STEPS = 4096  # looked at together, which bounds memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much a run computes at once at its most, in tokens, padding too; where the rows are
    known also how much in a step of the middle, and in how many steps."""

    step_tokens: int
    microbatch_tokens: int
    mean_step_tokens: float | None = None
    num_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """What decides the rows of every step, and their microbatches.

    Without `microbatch_tokens` rows are padded on the right, up to `microbatch_rows` of them side
    by side. With it they are packed, up to so many tokens in a row; a longer row is a microbatch
    of its own. Rows side by side are as long as a multiple of `multiple` tokens, and so is a packed
    microbatch. A row has `num_answers`, which are never apart: one behind the other when packed,
    else side by side.
    """

    seed: int
    batch_rows: int
    microbatch_rows: int
    microbatch_tokens: int | None = None
    multiple: int = 1
    num_answers: int = 1

    @classmethod
    def of(cls, config: TrainConfig) -> Self:
        """The arrangement of a run, whose microbatch is settled."""
        packed = config.packing == "on"
        assert packed == (config.microbatch_tokens is not None), "settle_microbatch comes first"
        return cls(
            seed=config.seed,
            batch_rows=config.batch_rows,
            microbatch_rows=min(config.microbatch_rows, config.batch_rows),
            microbatch_tokens=config.microbatch_tokens,
            multiple=_multiple(config),
            num_answers=NUM_ANSWERS[config.objective],
        )

    @property
    def row_multiple(self) -> int:
        """What the tokens of a padded row are a multiple of, with all its answers."""
        return self.multiple * self.num_answers

    def groups(self, lengths: Ints) -> list[Ints]:
        """Places of rows, by microbatch, for rows of these lengths, the longest first."""
        if self.microbatch_tokens is None:
            places = np.arange(len(lengths))
            return np.split(places, range(self.microbatch_rows, len(lengths), self.microbatch_rows))
        bins, _ = first_fit(lengths[None], self.microbatch_tokens)
        return [np.flatnonzero(bins[0] == i) for i in range(int(bins.max()) + 1)]

    def limit(self, longest_row_tokens: int) -> Extent:
        """What no rows of up to that length pass, whatever they are.

        First fit leaves a microbatch behind only with less room than the longest row, so all but
        the last hold at least as many rows as would fit if each were of that length.
        """
        if self.microbatch_tokens is None:
            width = round_up(longest_row_tokens, self.row_multiple)
            return Extent(
                step_tokens=self.batch_rows * width, microbatch_tokens=self.microbatch_rows * width
            )
        microbatch = round_up(max(self.microbatch_tokens, longest_row_tokens), self.multiple)
        full, rest = divmod(self.batch_rows, max(1, self.microbatch_tokens // longest_row_tokens))
        last = round_up(rest * longest_row_tokens, self.multiple)
        return Extent(
            step_tokens=max(microbatch, full * microbatch + last), microbatch_tokens=microbatch
        )


def settle_microbatch(config: TrainConfig, longest_row_tokens: int) -> TrainConfig:
    """The config with the microbatch decided, which is part of the numerics key.

    Where it was left open, packed rows take as many tokens as `microbatch_rows` of the longest
    would, so packing never makes more microbatches than padding, nor larger ones.
    """
    if config.packing == "off":
        return replace(config, microbatch_tokens=None)
    if config.microbatch_tokens is not None:
        return config
    tokens = min(config.microbatch_rows, config.batch_rows) * longest_row_tokens
    if _is_exact(config):
        return replace(config, microbatch_tokens=tokens)
    lengths = STATIC_LENGTHS if config.compile == "static" else 1
    return replace(config, microbatch_tokens=round_up(tokens, lengths * TILE_TOKENS))


def smaller_microbatch(config: TrainConfig, longest_row_tokens: int) -> TrainConfig | None:
    """The settled config with half the microbatch; None when it is down to one row."""
    rows = min(config.microbatch_rows, config.batch_rows)
    halved = replace(config, microbatch_rows=max(1, rows // 2))
    if config.microbatch_tokens is None:
        return halved if rows > 1 else None
    if config.microbatch_tokens <= longest_row_tokens:
        return None
    tokens = max(longest_row_tokens, config.microbatch_tokens // 2)
    return replace(halved, microbatch_tokens=tokens)


def _multiple(config: TrainConfig) -> int:
    if config.microbatch_tokens is None:
        return 1 if config.compile == "off" else TILE_TOKENS
    if _is_exact(config):
        return 1
    if config.compile != "static":
        return TILE_TOKENS
    return round_up(-(-config.microbatch_tokens // STATIC_LENGTHS), TILE_TOKENS)


def _is_exact(config: TrainConfig) -> bool:
    """Whether any length will do: on the CPU every padding token costs its share of time."""
    return config.device == "cpu" and config.compile == "off"


def first_fit(lengths: Ints, budget: int) -> tuple[Ints, Ints]:
    """Each row into the first bin that has room, for many steps at once.

    `lengths` is (steps, rows), in the order of placing; 0 is no row. Returns the bin of each row
    (-1 for no row) and the tokens of each bin, (steps, bins). A row longer than the budget fits
    into an empty bin alone.
    """
    steps = np.arange(len(lengths))
    bins = np.full(lengths.shape, -1, dtype=np.int64)
    loads = np.zeros((len(lengths), 1), dtype=np.int64)
    for i, length in enumerate(lengths.T):
        fits = (loads + length[:, None] <= budget) | (loads == 0)
        bins[:, i] = np.where(length > 0, fits.argmax(axis=1), -1)
        loads[steps, bins[:, i]] += length  # no row adds nothing, to whichever bin
        if loads[:, -1].any():
            loads = np.pad(loads, ((0, 0), (0, 1)))
    return bins, loads[:, :-1]


def step_rows(lengths: Ints, arrangement: Arrangement, step: int) -> Ints:
    """The rows of a step, counted from 1, the longest first: a function of its arguments alone.

    Each epoch goes through all rows in an order of its own.
    """
    size = arrangement.batch_rows
    epoch, place = divmod(step - 1, steps_per_epoch(len(lengths), size))
    order = epoch_order(len(lengths), seed=arrangement.seed, epoch=epoch)
    rows = order[place * size : (place + 1) * size]
    return rows[np.argsort(-lengths[rows], kind="stable")]


def row_lengths(offsets: Ints, num_answers: int, *, packed: bool) -> Ints:
    """Tokens that each row takes of a microbatch; `offsets` are those of its answers, and the end.

    Side by side all answers of a row are as long as its longest.
    """
    answers: Ints = (offsets[1:] - offsets[:-1]).reshape(-1, num_answers)
    taken: Ints = answers.sum(axis=1) if packed else num_answers * answers.max(axis=1)
    return taken


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLengths:
    """Tokens of the rows that a run trains on and evaluates on, int64, in the data sets' order:
    what they take of a microbatch (`row_lengths`)."""

    training: Ints
    evaluation: Ints | None = None

    @classmethod
    def read(cls, config: TrainConfig) -> Self:
        """The lengths in a run's prepared data sets."""

        def of(folder: str) -> Ints:
            offsets = np.fromfile(Path(folder) / OFFSETS, dtype=np.int64)
            count = NUM_ANSWERS[config.objective]
            return row_lengths(offsets, count, packed=config.packing == "on")

        evaluation = of(config.eval_dataset) if config.eval_dataset else None
        return cls(training=of(config.dataset), evaluation=evaluation)

    def sample(self, num_rows: int) -> "RowLengths":
        """The first rows alone, where a guess is wanted and not a promise."""
        return replace(self, training=self.training[:num_rows])

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        known = (self.training, self.evaluation)
        return max(int(lengths.max()) for lengths in known if lengths is not None)

    def usual(self, objective: Objective) -> int:
        """Mean tokens of what attends to itself in training: rows, or answers of preferences."""
        return max(1, int(self.training.mean()) // NUM_ANSWERS[objective])


def extent_of(lengths: RowLengths, config: TrainConfig) -> Extent:
    """The largest step and the largest microbatch, found by arranging every step of the run."""
    arrangement = Arrangement.of(config)
    total = num_steps(
        len(lengths.training),
        batch_rows=config.batch_rows,
        num_epochs=config.num_epochs,
        max_steps=config.max_steps,
    )
    step = microbatch = computed = 0
    for tokens in step_tokens(lengths.training, arrangement, total):
        computed += int(tokens.sum())
        step = max(step, int(tokens.sum(axis=1).max()))
        microbatch = max(microbatch, int(tokens.max()))
    if lengths.evaluation is not None:
        largest = max(int(t.max()) for t in _arranged(lengths.evaluation, arrangement))
        # One pass of evaluation holds the input of one layer where a step holds those of all.
        step, microbatch = max(step, largest), max(microbatch, largest)
    return Extent(
        step_tokens=step,
        microbatch_tokens=microbatch,
        mean_step_tokens=computed / total,
        num_steps=total,
    )


def padding_account(
    offsets: Ints, num_answers: int, *, batch_rows: int, microbatch_rows: int
) -> dict[str, Any]:
    """What padding would compute in an epoch of such steps, beyond the rows' own tokens.

    `offsets` as in `row_lengths`. Packing saves it, up to the tile that a packed microbatch is
    filled up to on a GPU.
    """
    rows = min(batch_rows, microbatch_rows)
    padded = Arrangement(seed=0, batch_rows=batch_rows, microbatch_rows=rows)
    lengths = row_lengths(offsets, num_answers, packed=False)
    steps = steps_per_epoch(len(lengths), batch_rows)
    computed = sum(int(tokens.sum()) for tokens in step_tokens(lengths, padded, steps))
    padding = computed - int(offsets[-1])
    return {
        "batch_rows": batch_rows,
        "microbatch_rows": rows,
        "padding_tokens": padding,
        "saved_by_packing": round(padding / max(1, computed), 4),
    }


def step_tokens(lengths: Ints, arrangement: Arrangement, total_steps: int) -> Iterator[Ints]:
    """Computed tokens of each microbatch of each step, (steps, microbatches), in pieces."""
    per_epoch = max(1, steps_per_epoch(len(lengths), arrangement.batch_rows))
    for epoch in range(-(-total_steps // per_epoch)):
        order = epoch_order(len(lengths), seed=arrangement.seed, epoch=epoch)
        steps = min(per_epoch, total_steps - epoch * per_epoch)
        yield from _arranged(lengths[order[: steps * arrangement.batch_rows]], arrangement)


def _arranged(lengths: Ints, arrangement: Arrangement) -> Iterator[Ints]:
    """Computed tokens of each microbatch when the rows are taken in this order, likewise."""
    size = arrangement.batch_rows
    for start in range(0, len(lengths), _CHUNK_STEPS * size):
        rows = lengths[start : start + _CHUNK_STEPS * size]
        table = np.zeros((steps_per_epoch(len(rows), size), size), dtype=np.int64)
        table.reshape(-1)[: len(rows)] = rows
        yield _microbatch_tokens(-np.sort(-table, axis=1), arrangement)


def _microbatch_tokens(table: Ints, arrangement: Arrangement) -> Ints:
    """Computed tokens of each microbatch; `table` is (steps, rows), longest first, 0 for no row."""
    if arrangement.microbatch_tokens is not None:
        _, loads = first_fit(table, arrangement.microbatch_tokens)
        return np.asarray(-(-loads // arrangement.multiple) * arrangement.multiple)
    count = arrangement.microbatch_rows
    starts = range(0, table.shape[1], count)
    rows = [(table[:, start : start + count] > 0).sum(axis=1) for start in starts]
    widths = -(-table // arrangement.row_multiple) * arrangement.row_multiple
    return np.stack([widths[:, i] * n for i, n in zip(starts, rows, strict=True)], axis=1)
