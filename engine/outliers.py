"""Rows that stand out by their loss in every epoch. No torch.

A loss falls while a model learns, so a row is compared with those that were trained about when it
was, and as a logarithm, since losses are never negative and lie skew.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from .report import FEWEST_ROWS
from .row_order import Ints

FAR = 4.0  # robust standard deviations from the middle row
LISTED = 20  # rows of each kind that are told
_NEIGHBOURS = 256  # rows by which it is judged how far losses are spread
_FEWEST_ABOUT, _MOST_ABOUT = 9, 33  # rows whose middle a row is compared with
_SIGMA = 1.4826  # median absolute deviations in a standard deviation of a normal distribution
_LEAST_LOSS = 1e-6  # below, losses are alike
UNSEEN = np.float32(-1)  # a row that an epoch has not come to; no mean loss is negative

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outliers:
    """Rows far above the others in every epoch that they were seen in, the farthest first; rows
    far below; rows whose loss was no number; and the middle loss of each epoch.

    Counts are of all of them, places (from 0) of the first `LISTED`.
    """

    above: tuple[int, list[int]]
    below: tuple[int, list[int]]
    not_finite: tuple[int, list[int]]
    medians: list[float]


def find_outliers(epochs: Iterable[tuple[Floats, Ints]], num_rows: int) -> Outliers | None:
    """Outliers among rows, given each epoch's mean losses, (rows,), and the order of its rows.

    A row that an epoch has not come to is minus one there. None where too few rows were seen.
    """
    lowest = np.full(num_rows, np.inf, dtype=np.float32)  # of a row's distances
    highest = np.full(num_rows, -np.inf, dtype=np.float32)
    broken = np.zeros(num_rows, dtype=bool)
    medians = []
    for losses, order in epochs:
        visited = order[losses[order] != UNSEEN]
        finite = np.isfinite(losses[visited])
        broken[visited[~finite]] = True
        seen = visited[finite]
        if len(seen) < FEWEST_ROWS:
            continue
        medians.append(float(np.median(losses[seen])))
        distances = _distances(np.log(np.maximum(losses[seen], _LEAST_LOSS)))
        lowest[seen] = np.minimum(lowest[seen], distances)
        highest[seen] = np.maximum(highest[seen], distances)
    if not medians:
        return None
    measured = ~broken & np.isfinite(lowest)
    return Outliers(
        above=_ranked(np.where(measured, lowest, 0)),
        below=_ranked(np.where(measured, -highest, 0)),
        not_finite=(int(broken.sum()), np.flatnonzero(broken)[:LISTED].tolist()),
        medians=medians,
    )


def _distances(values: Floats) -> Floats:
    """How far each value is from the middle of those about it, in standard deviations of what its
    neighbours are from theirs."""
    found = []
    for block in np.array_split(values, max(1, len(values) // _NEIGHBOURS)):
        apart = block - _middles(block)
        spread = _SIGMA * np.median(np.abs(apart))
        found.append(apart / spread if spread > 0 else np.zeros_like(apart))
    return np.concatenate(found)


def _middles(block: Floats) -> Floats:
    """The middle of the values about each: a loss may fall by half while a block is trained."""
    width = max(_FEWEST_ABOUT, min(_MOST_ABOUT, len(block) // 4))
    middles = np.median(sliding_window_view(block, width), axis=1)
    places = np.arange(len(block)) - width // 2
    return np.asarray(middles[np.clip(places, 0, len(middles) - 1)])


def _ranked(distances: Floats) -> tuple[int, list[int]]:
    """How many rows are far, and the places of the farthest."""
    far = np.flatnonzero(distances > FAR)
    order = np.argsort(-distances[far], kind="stable")
    return len(far), far[order][:LISTED].tolist()
