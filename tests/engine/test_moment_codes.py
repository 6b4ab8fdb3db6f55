"""Moments in 8 bits: small errors, none on average, no second moment taken for zero."""

import pytest
import torch

from headrace.engine.moment_codes import (
    decode_exp_avg,
    decode_exp_avg_sq,
    encode_exp_avg,
    encode_exp_avg_sq,
)

NUM = 256 * 64
ENCODE = {"m": (encode_exp_avg, decode_exp_avg), "v": (encode_exp_avg_sq, decode_exp_avg_sq)}


def _through(kind: str, values: torch.Tensor, random: torch.Tensor) -> torch.Tensor:
    encode, decode = ENCODE[kind]
    codes = torch.empty(values.numel(), dtype=torch.uint8)
    bases = torch.empty(values.numel() // 256, dtype=torch.int16)
    encode(values, random, codes, bases)
    out = torch.empty_like(values)
    decode(codes, bases, out)
    return out


def _random() -> torch.Tensor:
    return torch.randint(0, 2**20, (NUM,), dtype=torch.int32)


def _spread(powers: int) -> torch.Tensor:
    """Magnitudes over so many powers of two in every block, each block at another level."""
    torch.manual_seed(0)
    levels = torch.linspace(-90, 60, NUM // 256).repeat_interleave(256)
    return (levels - powers * torch.rand(NUM)).exp2()


@pytest.mark.parametrize(("kind", "powers"), [("m", 14), ("v", 30)])
def test_a_value_comes_back_within_an_eighth(kind: str, powers: int) -> None:
    values = _spread(powers)
    if kind == "m":
        values *= torch.randn(NUM).sign()
    error = (_through(kind, values, _random()) / values - 1).abs()
    assert error.max() <= 0.125


@pytest.mark.parametrize("kind", ["m", "v"])
def test_the_mean_over_many_roundings_is_the_value(kind: str) -> None:
    values = _spread(10)
    mean = sum(_through(kind, values, _random()) for _ in range(400)) / 400
    assert isinstance(mean, torch.Tensor)
    # A rounding scatters by at most 1/16 of the value, the mean of 400 by 1/320.
    assert ((mean - values) / values).abs().max() < 6 / 320
    assert ((mean - values) / values).mean().abs() < 6 / 320 / NUM**0.5


@pytest.mark.parametrize("kind", ["m", "v"])
def test_codes_are_held_exactly_once_they_are_codes(kind: str) -> None:
    once = _through(kind, _spread(10), _random())
    assert torch.equal(_through(kind, once, _random()), once)


def test_a_second_moment_is_zero_only_where_it_is_zero() -> None:
    values = torch.full((NUM,), 1e-40)
    values[::256] = 1e10
    values[1::256] = 0
    back = _through("v", values, _random())
    assert (back[values > 0] >= values[values > 0] * 0.8).all()
    assert not back[1::256].any()


def test_a_first_moment_far_below_its_block_becomes_zero() -> None:
    values = torch.full((NUM,), -1e-8)
    values[::256] = 1.0
    back = _through("m", values, _random())
    assert not back[1:256].any() and (back[::256] == 1).all()


def test_empty_blocks_are_zero() -> None:
    for kind in ENCODE:
        assert not _through(kind, torch.zeros(NUM), _random()).view(torch.int32).any()
