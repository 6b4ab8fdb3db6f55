"""The order of the rows in each epoch: a function of seed and epoch that never changes. Pure."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def steps_per_epoch(num_rows: int, batch_rows: int) -> int:
    """Steps that take every row once; the last of them may be short."""
    return -(-num_rows // batch_rows)


def num_steps(num_rows: int, *, batch_rows: int, num_epochs: int, max_steps: int | None) -> int:
    """Optimizer steps of a run. The last batch of an epoch may be short; `max_steps` caps."""
    steps = steps_per_epoch(num_rows, batch_rows) * num_epochs
    return steps if max_steps is None else min(steps, max_steps)


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
