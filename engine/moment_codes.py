"""Moments in 8 bits: a floating-point code of each element over a base of its block of 256.

A code counts steps of an eighth of a power of two (fp32 bits without the 20 lowest) from the base,
which the block's largest element sets; 0 stands for zero. Both kinds are rounded stochastically:

- `exp_avg_sq`: 255 codes, 32 powers of two below the largest. What is smaller but not zero gets
  the smallest code: the second moment is never taken for zero, and an update never explodes.
- `exp_avg`: a sign and 127 codes, 16 powers of two. What is smaller becomes zero.

Nearest rounding would freeze the second moment, which moves by at most a thousandth of itself
downwards in a step, a hundredth of a code; codes linear in the moment or in its root are too
coarse for the small elements of a block (README.md has the figures).
"""

import torch
from torch import Tensor

from .rounding import round_bits
from .state_record import BLOCK_ELEMENTS

DROPPED_BITS = 20  # of fp32's 23 mantissa bits, three stay
MAGNITUDES = 127  # codes of exp_avg besides zero, for either sign
SQUARES = 255  # codes of exp_avg_sq besides zero
_MAGNITUDE_BITS = 0x7FFFFFFF


def encode_exp_avg(values: Tensor, random: Tensor, codes: Tensor, bases: Tensor) -> None:
    """Write fp32 `values` into uint8 `codes` and int16 `bases`; `random` is 20 bits, int32."""
    bits = values.view(torch.int32)
    steps = round_bits(bits & _MAGNITUDE_BITS, random, DROPPED_BITS)
    above = _above_base(steps, MAGNITUDES, bases)
    signs = (bits >> 24) & 0x80
    codes.copy_(torch.where(above < 1, 0, above | signs))


def decode_exp_avg(codes: Tensor, bases: Tensor, out: Tensor) -> None:
    """Write the values of uint8 `codes` over int16 `bases` into fp32 `out`."""
    wide = codes.to(torch.int32)
    magnitudes = wide & MAGNITUDES
    signs = (wide & 0x80) << 24
    out.view(torch.int32).copy_(_from_base(magnitudes, bases) | signs)


def encode_exp_avg_sq(values: Tensor, random: Tensor, codes: Tensor, bases: Tensor) -> None:
    """Write fp32 `values`, none below zero, into uint8 `codes` and int16 `bases`."""
    bits = values.view(torch.int32)
    steps = round_bits(bits, random, DROPPED_BITS)
    above = _above_base(steps, SQUARES, bases)
    codes.copy_(torch.where(bits == 0, 0, above.clamp_min(1)))


def decode_exp_avg_sq(codes: Tensor, bases: Tensor, out: Tensor) -> None:
    """Write the values of uint8 `codes` over int16 `bases` into fp32 `out`."""
    out.view(torch.int32).copy_(_from_base(codes.to(torch.int32), bases))


def _above_base(steps: Tensor, num_codes: int, bases: Tensor) -> Tensor:
    """Steps above the base of each block, which is written; the largest element's code fits."""
    blocks = steps.view(-1, BLOCK_ELEMENTS)
    base = (blocks.amax(1, keepdim=True) - num_codes).clamp_min(0)
    bases.copy_(base.view(-1))
    return (blocks - base).view(-1)


def _from_base(codes: Tensor, bases: Tensor) -> Tensor:
    """fp32 bits of codes above their block's base; of 0 for the code 0."""
    blocks = codes.view(-1, BLOCK_ELEMENTS)
    steps = blocks + bases.to(torch.int32).view(-1, 1)
    return (steps << DROPPED_BITS).masked_fill_(blocks == 0, 0).view(-1)
