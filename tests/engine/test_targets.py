"""Which tokens the loss counts, and at which positions they are predicted."""

import torch
from torch import Tensor

from headrace.engine.example import NOT_TRAINED
from headrace.engine.head import targets_of


def by_hand(labels: Tensor) -> list[tuple[int, int]]:
    rows, tokens = labels.shape
    return [
        (row * tokens + at, int(labels[row, at + 1]))
        for row in range(rows)
        for at in range(tokens - 1)
        if labels[row, at + 1] != NOT_TRAINED
    ]


def test_a_position_predicts_the_next_label_of_its_row_where_that_is_trained() -> None:
    labels = torch.tensor([[1, 2, NOT_TRAINED, 4], [5, NOT_TRAINED, NOT_TRAINED, 0]])
    for given in (labels, labels.repeat(1, 2)[:, ::2], labels[:, :1]):
        positions, wanted = targets_of(given)
        assert positions.dtype == wanted.dtype == torch.int64
        assert list(zip(positions.tolist(), wanted.tolist(), strict=True)) == by_hand(given)


def test_targets_outlive_a_change_of_the_labels() -> None:
    labels = torch.tensor([[1, 2, 3]])
    _, wanted = targets_of(labels)
    labels.zero_()
    assert wanted.tolist() == [2, 3]


def test_rows_without_a_trained_token_have_no_targets() -> None:
    positions, wanted = targets_of(torch.full((2, 5), NOT_TRAINED))
    assert positions.shape == wanted.shape == (0,)
