"""Every row once an epoch, in an order that only the seed decides, at any step without replay."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headrace.engine.data import (
    Microbatch,
    TokenDataset,
    eval_microbatches,
    step_microbatches,
)
from headrace.engine.data_report import DataProblem
from headrace.engine.packing import Arrangement
from headrace.engine.row_order import epoch_order, num_steps
from headrace.engine.token_files import new_dataset

LENGTHS = [3, 7, 2, 5, 4, 6, 2, 9, 3, 8]


@pytest.fixture
def dataset(tmp_path: Path) -> TokenDataset:
    """Ten rows; row i holds tokens 100 i, 100 i + 1, …; all but the first two are labelled."""
    with new_dataset(tmp_path / "data") as writer:
        for i, length in enumerate(LENGTHS):
            writer.append([100 * i + j for j in range(length)], [j > 1 for j in range(length)])
        writer.finish({"trained_tokens": sum(max(length - 2, 0) for length in LENGTHS)})
    return TokenDataset.open(tmp_path / "data")


def batches(
    dataset: TokenDataset, step: int, *, batch: int = 4, micro: int = 3
) -> list[Microbatch]:
    arrangement = Arrangement(seed=7, batch_rows=batch, microbatch_rows=micro)
    return step_microbatches(dataset, arrangement, step=step)


def evaluated(dataset: TokenDataset, *, batch: int, micro: int) -> list[Microbatch]:
    arrangement = Arrangement(seed=7, batch_rows=batch, microbatch_rows=micro)
    return list(eval_microbatches(dataset, arrangement))


def test_rows_come_back_as_written(dataset: TokenDataset) -> None:
    assert (dataset.num_rows, dataset.num_tokens, dataset.longest) == (10, sum(LENGTHS), 9)
    assert dataset.num_trained_tokens == sum(LENGTHS) - 20
    assert dataset.lengths.tolist() == LENGTHS
    ids, labels = dataset.row(3)
    assert ids.tolist() == [300, 301, 302, 303, 304]
    assert labels.tolist() == [-100, -100, 302, 303, 304]
    assert ids.dtype == labels.dtype == np.int64


def test_token_ids_above_two_billion_survive(tmp_path: Path) -> None:
    with new_dataset(tmp_path / "data") as writer:
        writer.append([2**32 - 1, 1], [False, True])
        writer.finish({"trained_tokens": 1})
    assert TokenDataset.open(tmp_path / "data").row(0)[0].tolist() == [2**32 - 1, 1]


def test_a_label_on_the_first_token_is_not_counted(tmp_path: Path) -> None:
    with new_dataset(tmp_path / "data") as writer:
        writer.append([5, 6, 7], [True, False, True])
        writer.finish({"trained_tokens": 1})
    (made,) = evaluated(TokenDataset.open(tmp_path / "data"), batch=2, micro=2)
    assert made.num_trained == 1


def test_microbatches_are_padded_to_their_own_longest_row(dataset: TokenDataset) -> None:
    for made in batches(dataset, 1):
        lengths = dataset.lengths[list(made.row_indices)]
        assert made.ids.shape == made.labels.shape == (len(lengths), lengths.max())
        assert made.num_tokens == lengths.sum()
        assert made.num_trained == (lengths - 2).sum()
        for ids, labels, i in zip(made.ids, made.labels, made.row_indices, strict=True):
            row_ids, row_labels = dataset.row(i)
            n = len(row_ids)
            assert ids[:n].tolist() == row_ids.tolist() and not ids[n:].any()
            assert labels[:n].tolist() == row_labels.tolist() and (labels[n:] == -100).all()


def rows_of(made: list[Microbatch]) -> list[int]:
    return [i for microbatch in made for i in microbatch.row_indices]


def test_every_epoch_sees_every_row_once(dataset: TokenDataset) -> None:
    for epoch in range(3):
        rows = [i for k in range(3) for i in rows_of(batches(dataset, 3 * epoch + k + 1))]
        assert Counter(rows) == Counter(range(10))
    assert [len(rows_of(batches(dataset, step))) for step in (1, 2, 3, 4)] == [4, 4, 2, 4]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(epoch_order(50, seed=seed, epoch=epoch)) for seed in range(5) for epoch in range(5)
    }
    assert len(orders) == 25


def splitmix64(start: int, index: int) -> int:
    """The generator in plain integers."""
    z = (start + (index + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (7, 1), (2**31 - 1, 3)])
def test_the_order_is_that_of_plain_integers(seed: int, epoch: int) -> None:
    assert splitmix64(0, 0) == 0xE220A8397B1DCDAF  # the published first number of seed 0
    start = splitmix64(0, splitmix64(0, seed) ^ epoch)
    wanted = sorted(range(100), key=lambda i: splitmix64(start, i))
    assert epoch_order(100, seed=seed, epoch=epoch).tolist() == wanted


def test_the_order_is_fixed_for_ever() -> None:
    assert epoch_order(10, seed=0, epoch=0).tolist() == [7, 4, 9, 5, 3, 1, 2, 8, 0, 6]


def test_every_row_is_as_likely_at_every_place() -> None:
    first = Counter(int(epoch_order(5, seed=seed, epoch=0)[0]) for seed in range(2000))
    assert all(330 < first[row] < 470 for row in range(5)), first


def test_a_step_does_not_depend_on_the_steps_before_it(dataset: TokenDataset) -> None:
    straight = [rows_of(batches(dataset, step)) for step in range(1, 10)]
    epoch_order.cache_clear()
    assert rows_of(batches(dataset, 8)) == straight[7]


def test_the_microbatch_split_changes_no_row_of_the_step(dataset: TokenDataset) -> None:
    whole = rows_of(batches(dataset, 2, micro=4))
    assert [rows_of(batches(dataset, 2, micro=micro)) for micro in (1, 2, 3)] == [whole] * 3


def test_longest_rows_of_a_step_come_first(dataset: TokenDataset) -> None:
    lengths = dataset.lengths[rows_of(batches(dataset, 1, batch=10))]
    assert lengths.tolist() == sorted(LENGTHS, reverse=True)


def test_evaluation_takes_the_rows_of_the_file_in_order_as_many_as_a_step_has(
    dataset: TokenDataset,
) -> None:
    made = evaluated(dataset, batch=4, micro=3)
    assert [microbatch.row_indices for microbatch in made] == [
        (1, 3, 0),
        (2,),
        (7, 5, 4),
        (6,),
        (9, 8),
    ]
    assert sum(microbatch.num_tokens for microbatch in made) == dataset.num_tokens
    assert sum(microbatch.num_trained for microbatch in made) == dataset.num_trained_tokens


def test_steps_count_the_short_last_batch_of_each_epoch() -> None:
    assert num_steps(10, batch_rows=4, num_epochs=3, max_steps=None) == 9
    assert num_steps(8, batch_rows=4, num_epochs=3, max_steps=None) == 6
    assert num_steps(10, batch_rows=4, num_epochs=3, max_steps=5) == 5
    assert num_steps(10, batch_rows=4, num_epochs=1, max_steps=50) == 3


@pytest.mark.parametrize("name", ["tokens.bin", "trained.bin", "offsets.bin", "report.json"])
def test_a_missing_file_is_named(dataset: TokenDataset, name: str) -> None:
    (dataset.path / name).unlink()
    with pytest.raises(DataProblem, match=name):
        TokenDataset.open(dataset.path)


@pytest.mark.parametrize("name", ["tokens.bin", "trained.bin", "offsets.bin"])
def test_a_cut_file_is_refused(dataset: TokenDataset, name: str) -> None:
    path = dataset.path / name
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DataProblem, match="do not fit together"):
        TokenDataset.open(dataset.path)


def test_an_unfinished_data_set_leaves_the_old_one_in_place(dataset: TokenDataset) -> None:
    with pytest.raises(RuntimeError), new_dataset(dataset.path) as writer:
        writer.append([1], [True])
        raise RuntimeError
    with new_dataset(dataset.path) as writer:
        writer.append([1], [True])
    assert TokenDataset.open(dataset.path).num_rows == 10
    assert [path.name for path in dataset.path.parent.iterdir()] == ["data"]
