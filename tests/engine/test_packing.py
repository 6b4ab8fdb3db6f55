"""Packing arranges the rows of a step, all of them, and counts what it makes before it is made."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets import write_dataset
from headrace.engine import RowLengths, TokenDataset, TrainConfig
from headrace.engine.data import Microbatch, eval_microbatches, step_microbatches
from headrace.engine.packing import (
    Arrangement,
    extent_of,
    first_fit,
    padding_account,
    settle_microbatch,
    smaller_microbatch,
    step_rows,
)
from headrace.engine.row_order import num_steps

rows_of_steps = st.lists(st.integers(1, 40), min_size=1, max_size=40)


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(model="m", dataset="d", **settings)


@given(lengths=rows_of_steps, budget=st.integers(1, 60))
def test_no_microbatch_passes_its_budget_but_one_row_alone(lengths: list[int], budget: int) -> None:
    bins, loads = first_fit(np.array([lengths]), budget)
    for i, load in enumerate(loads[0]):
        inside = [length for length, b in zip(lengths, bins[0], strict=True) if b == i]
        assert sum(inside) == load > 0
        assert load <= budget or len(inside) == 1


def fit_by_hand(lengths: list[int], budget: int) -> list[int]:
    """First fit, row by row and bin by bin."""
    loads: list[int] = []
    bins = []
    for length in lengths:
        loads.append(0)
        place = next(i for i, load in enumerate(loads) if not load or load + length <= budget)
        loads[place] += length
        loads = [load for load in loads if load]
        bins.append(place)
    return bins


@given(steps=st.lists(rows_of_steps, min_size=1, max_size=6), budget=st.integers(1, 60))
def test_many_steps_at_once_are_packed_as_each_alone(steps: list[list[int]], budget: int) -> None:
    table = np.zeros((len(steps), max(map(len, steps))), dtype=np.int64)
    for row, lengths in zip(table, steps, strict=True):
        row[: len(lengths)] = lengths
    bins, _ = first_fit(table, budget)
    for found, lengths in zip(bins, steps, strict=True):
        assert found[: len(lengths)].tolist() == fit_by_hand(lengths, budget)
        assert (found[len(lengths) :] == -1).all()


@given(
    lengths=rows_of_steps,
    batch_rows=st.integers(1, 9),
    tokens=st.integers(1, 120) | st.none(),
    how=st.sampled_from(
        [
            {},
            {"device": "cuda"},
            {"compile": "static"},
            {"compile": "dynamic", "device": "cuda"},
            {"packing": "off"},
        ]
    ),
)
def test_what_is_planned_without_the_rows_is_never_less_than_with_them(
    lengths: list[int], batch_rows: int, tokens: int | None, how: dict[str, Any]
) -> None:
    asked = how if how.get("packing") == "off" else {**how, "microbatch_tokens": tokens}
    rows = RowLengths(training=np.array(lengths), evaluation=np.array(lengths[::-1]))
    settled = settle_microbatch(config(batch_rows=batch_rows, **asked), rows.longest)
    limit, found = Arrangement.of(settled).limit(rows.longest), extent_of(rows, settled)
    assert found.step_tokens <= limit.step_tokens
    assert found.microbatch_tokens <= limit.microbatch_tokens


LENGTHS = [9, 17, 5, 30, 12, 21, 8, 26, 14, 11, 23, 3]


@pytest.fixture
def dataset(tmp_path: Path) -> TokenDataset:
    return TokenDataset.open(write_dataset(tmp_path / "data", LENGTHS, vocab=384))


HOW: list[dict[str, Any]] = [
    {},
    {"microbatch_tokens": 25},
    {"microbatch_tokens": 70, "device": "cuda"},
    {"compile": "static"},
    {"packing": "off"},
]


@pytest.mark.parametrize("how", HOW)
def test_the_planned_extent_is_what_the_steps_then_compute(
    dataset: TokenDataset, how: dict[str, Any]
) -> None:
    settled = settle_microbatch(config(batch_rows=5, num_epochs=4, seed=3, **how), dataset.longest)
    arrangement = Arrangement.of(settled)
    total = num_steps(len(LENGTHS), batch_rows=5, num_epochs=4, max_steps=None)
    steps = [
        [batch.ids.numel() for batch in step_microbatches(dataset, arrangement, step=step)]
        for step in range(1, total + 1)
    ]
    found = extent_of(RowLengths(training=dataset.lengths), settled)
    assert found.step_tokens == max(map(sum, steps))
    assert found.microbatch_tokens == max(map(max, steps))
    # Evaluation takes the rows in another order, which may fill a microbatch further.
    both = extent_of(RowLengths(training=dataset.lengths, evaluation=dataset.lengths), settled)
    evaluated = [batch.ids.numel() for batch in eval_microbatches(dataset, arrangement)]
    assert both.microbatch_tokens == max(found.microbatch_tokens, *evaluated)


@pytest.mark.parametrize("how", HOW)
def test_a_step_has_the_rows_that_it_has_however_they_are_arranged(
    dataset: TokenDataset, how: dict[str, Any]
) -> None:
    settled = settle_microbatch(config(batch_rows=5, seed=3, **how), dataset.longest)
    arrangement = Arrangement.of(settled)
    for step in range(1, 7):
        made = step_microbatches(dataset, arrangement, step=step)
        rows = [i for batch in made for i in batch.row_indices]
        padded = Arrangement(seed=3, batch_rows=5, microbatch_rows=2)
        assert Counter(rows) == Counter(step_rows(dataset.lengths, padded, step).tolist())
        assert sum(batch.num_tokens for batch in made) == dataset.lengths[rows].sum()
        alone = [dataset.row(i)[1] for i in rows]
        assert sum(batch.num_trained for batch in made) == sum(
            int((labels[1:] != -100).sum()) for labels in alone
        )


def documents_of(batch: Microbatch) -> list[int]:
    assert batch.packed
    return batch.lengths.tolist()


def test_rows_lie_one_behind_the_other_and_padding_is_a_document_of_its_own(
    dataset: TokenDataset,
) -> None:
    arrangement = Arrangement(
        seed=3, batch_rows=5, microbatch_rows=4, microbatch_tokens=60, multiple=16
    )
    for batch in step_microbatches(dataset, arrangement, step=1):
        lengths = dataset.lengths[list(batch.row_indices)].tolist()
        total = sum(lengths)
        assert batch.ids.shape == batch.labels.shape == (1, -(-total // 16) * 16)
        documents = documents_of(batch)
        assert len(documents) == 6
        assert documents[: len(lengths) + 1] == [*lengths, batch.ids.numel() - total]
        assert not any(documents[len(lengths) + 1 :])
        ids = [i for row in batch.row_indices for i in dataset.row(row)[0].tolist()]
        assert batch.ids[0, :total].tolist() == ids and not batch.ids[0, total:].any()
        assert (batch.labels[0, total:] == -100).all()


def test_the_first_token_of_a_row_is_not_predicted_from_the_row_before_it(tmp_path: Path) -> None:
    from headrace.engine.token_files import new_dataset

    with new_dataset(tmp_path / "data") as writer:
        writer.append([5, 6, 7], [True, True, True])
        writer.append([8, 9], [True, True])
        writer.finish({"trained_tokens": 3})
    arrangement = Arrangement(seed=0, batch_rows=2, microbatch_rows=2, microbatch_tokens=9)
    (made,) = step_microbatches(TokenDataset.open(tmp_path / "data"), arrangement, step=1)
    assert made.labels.tolist() == [[-100, 6, 7, -100, 9]]
    assert made.num_trained == 3


def test_a_row_longer_than_the_budget_is_a_microbatch_by_itself(dataset: TokenDataset) -> None:
    arrangement = Arrangement(seed=3, batch_rows=12, microbatch_rows=4, microbatch_tokens=20)
    made = step_microbatches(dataset, arrangement, step=1)
    alone = [batch for batch in made if batch.num_tokens > 20]
    assert sorted(batch.ids.shape[1] for batch in alone) == [21, 23, 26, 30]
    assert all(len(batch.row_indices) == 1 for batch in alone)


def test_packing_makes_no_more_microbatches_than_padding(dataset: TokenDataset) -> None:
    settled = settle_microbatch(config(batch_rows=5, microbatch_rows=2), dataset.longest)
    assert settled.microbatch_tokens == 2 * 30
    for step in range(1, 4):
        assert len(step_microbatches(dataset, Arrangement.of(settled), step=step)) <= 3


@pytest.mark.parametrize("how", [{"compile": "static"}, {"compile": "static", "device": "cuda"}])
def test_microbatches_compiled_one_by_one_have_few_lengths(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(2, 300, 200).tolist()
    dataset = TokenDataset.open(write_dataset(tmp_path / "data", lengths, vocab=384))
    settled = settle_microbatch(config(batch_rows=9, **how), dataset.longest)
    arrangement = Arrangement.of(settled)
    shapes = {
        (batch.ids.shape, len(documents_of(batch)))
        for step in range(1, 24)
        for batch in step_microbatches(dataset, arrangement, step=step)
    }
    assert len(shapes) <= 4


@pytest.mark.parametrize("packing", ["on", "off"])
def test_a_microbatch_shrinks_down_to_one_row(packing: Any) -> None:
    one = settle_microbatch(config(batch_rows=8, microbatch_rows=6, packing=packing), 100)
    sizes = []
    while (smaller := smaller_microbatch(one, 100)) is not None:
        sizes.append((smaller.microbatch_rows, smaller.microbatch_tokens))
        one = smaller
    packed = [(3, 300), (1, 150), (1, 100)]
    assert sizes == (packed if packing == "on" else [(3, None), (1, None)])


def test_a_budget_for_packed_rows_without_packing_is_refused() -> None:
    with pytest.raises(ValueError, match="packing is off"):
        config(packing="off", microbatch_tokens=100)


def test_the_padding_account_counts_what_padded_microbatches_compute(dataset: TokenDataset) -> None:
    account = padding_account(dataset.offsets, 1, batch_rows=5, microbatch_rows=2)
    padded = Arrangement(seed=0, batch_rows=5, microbatch_rows=2)
    made = [one for step in (1, 2, 3) for one in step_microbatches(dataset, padded, step=step)]
    computed = sum(batch.ids.numel() for batch in made)
    assert account["padding_tokens"] == computed - sum(LENGTHS) > 0
    assert account["saved_by_packing"] == round(1 - sum(LENGTHS) / computed, 4)
