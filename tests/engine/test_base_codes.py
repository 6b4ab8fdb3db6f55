"""Codes of frozen weights: the nearest value of each block, and the same bits in any pieces."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from headrace.engine.base_codes import decode, encode, nf4_values
from headrace.engine.model import CODE_BLOCK, CodedFormat

# As printed in the appendix of the paper, to its seven places.
PRINTED = [
    -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
]  # fmt: skip
FORMATS = get_args(CodedFormat)


def coded(weights: Tensor, base: CodedFormat) -> tuple[Tensor, Tensor]:
    count = weights.numel()
    codes = (
        torch.empty(count // 2, dtype=torch.uint8)
        if base == "nf4"
        else torch.empty(count, dtype=torch.int8)
    )
    scales = torch.empty(count // CODE_BLOCK)
    encode(weights, codes, scales, base)
    return codes, scales


def there_and_back(
    weights: Tensor, base: CodedFormat, dtype: torch.dtype = torch.float32
) -> Tensor:
    out = torch.empty(weights.numel(), dtype=dtype)
    decode(*coded(weights, base), out, base)
    return out


def test_the_values_are_those_of_the_paper() -> None:
    assert nf4_values() == pytest.approx(PRINTED, abs=1e-6)


@pytest.mark.parametrize("base", FORMATS)
def test_every_weight_becomes_the_nearest_value_of_its_block(base: CodedFormat) -> None:
    torch.manual_seed(0)
    weights = torch.randn(40 * CODE_BLOCK) * torch.rand(40).repeat_interleave(CODE_BLOCK)
    values = torch.tensor(nf4_values() if base == "nf4" else [i / 127 for i in range(-127, 128)])
    blocks = weights.view(-1, CODE_BLOCK)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    near = ((blocks / largest)[..., None] - values).abs().argmin(dim=-1)
    torch.testing.assert_close(
        there_and_back(weights, base).view_as(blocks), values[near] * largest
    )


@pytest.mark.parametrize("base", FORMATS)
def test_coding_what_was_coded_changes_nothing(base: CodedFormat) -> None:
    torch.manual_seed(1)
    once = there_and_back(torch.randn(8 * CODE_BLOCK), base)
    torch.testing.assert_close(there_and_back(once, base), once, rtol=1e-6, atol=0)


@pytest.mark.parametrize("base", FORMATS)
def test_a_block_of_zeros_stays_zero_and_the_largest_weight_stays_itself(base: CodedFormat) -> None:
    weights = torch.zeros(3 * CODE_BLOCK)
    weights[CODE_BLOCK + 5], weights[2 * CODE_BLOCK] = -3.7, 1e-30
    assert torch.equal(there_and_back(weights, base), weights)


@pytest.mark.parametrize("base", FORMATS)
def test_pieces_do_not_change_a_bit(base: CodedFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    weights = torch.randn(9 * CODE_BLOCK)
    whole = there_and_back(weights, base)
    monkeypatch.setattr("headrace.engine.base_codes.CHUNK_ELEMENTS", 2 * CODE_BLOCK)
    assert torch.equal(there_and_back(weights, base), whole)


@pytest.mark.parametrize("base", FORMATS)
def test_bfloat16_weights_are_the_exact_ones_rounded_once(base: CodedFormat) -> None:
    torch.manual_seed(3)
    weights = torch.randn(4 * CODE_BLOCK)
    rounded = there_and_back(weights, base, torch.bfloat16)
    assert torch.equal(rounded, there_and_back(weights, base).bfloat16())
