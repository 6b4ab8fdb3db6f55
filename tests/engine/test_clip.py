"""The norm is summed in a fixed order, and its factor is torch's."""

import pytest
import torch

from headrace.engine import clip
from headrace.engine.clip import clip_factor, sum_of_squares


@pytest.mark.parametrize("num", [2048, 4096 * 3, 2048 * 601])
def test_sum_of_squares_agrees_with_float64(num: int) -> None:
    values = torch.randn(num)
    assert float(sum_of_squares(values)) == pytest.approx(float(values.double().square().sum()))


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    values = torch.randn(4096 * 700)
    threads = torch.get_num_threads()
    sums = set()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            sums.add(float(sum_of_squares(values)))
    finally:
        torch.set_num_threads(threads)
    assert len(sums) == 1


@pytest.mark.parametrize("num", [2048, 4096 * 17, 4096 * 700, 2048 * 601])
def test_how_many_rows_are_squared_at_once_does_not_change_a_bit(
    num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.randn(num) * torch.logspace(-6, 6, num)
    before = values.clone()
    sums = set()
    for rows in (1, 16, 256, 1000):
        monkeypatch.setattr(clip, "_ROWS", rows)
        sums.add(float(sum_of_squares(values)))
    assert len(sums) == 1 and torch.equal(values, before)


def test_a_value_that_is_not_finite_reaches_the_norm() -> None:
    values = torch.zeros(4096)
    values[17] = float("nan")
    assert torch.isnan(sum_of_squares(values))


def test_the_factor_is_that_of_clip_grad_norm() -> None:
    grad = torch.randn(4096) * 3
    parameter = torch.nn.Parameter(torch.zeros(4096))
    parameter.grad = grad.clone()
    torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    factor = clip_factor(sum_of_squares(grad).sqrt(), 1.0)
    torch.testing.assert_close(grad * factor, parameter.grad)
    assert float(factor) < 1


def test_a_small_gradient_is_not_scaled() -> None:
    assert float(clip_factor(torch.tensor(0.5, dtype=torch.float64), 1.0)) == 1.0
