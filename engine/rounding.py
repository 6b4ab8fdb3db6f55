"""Random bits for stochastic rounding, as a function of where and when, and rounding with them.

No state and no order: the bits of an element depend on the run's seed, the number of the update,
the record and the element's place in it alone. So a replay, a resume, another placement or another
device rounds the same way. `triton_compact.py` holds the same functions.
"""

import struct
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

# Two rounds of xor-shift and multiply mix 32 bits so that every input bit flips about half of the
# output bits; constants from the search described at nullprogram.com/blog/2018/07/31.
MULTIPLIERS = (0x21F0AAAD, 0xD35A2D97 - 2**32)
SHIFTS = (16, 15)
LAST_SHIFT = 15
STRIDE = 0x9E3779B9 - 2**32  # from an element's first word to its second

NOT_FINITE = 0x7F800000  # the exponent's bits, all set in an infinity and in a NaN


@dataclass(frozen=True, slots=True)
class RoundingKey:
    """What makes the random bits of a record in an update its own: two signed 32-bit numbers."""

    first: int
    second: int

    @classmethod
    def of(cls, seed: int, update: int, record: str) -> "RoundingKey":
        """The key of a record (by name) in the `update`-th update of a run."""
        digest = blake2b(f"{seed}/{update}/{record}".encode(), digest_size=8).digest()
        return cls(*struct.unpack("<ii", digest))


def random_words(key: RoundingKey, places: Tensor) -> tuple[Tensor, Tensor]:
    """Two int32 words of random bits for each place (int32, an element's index in the record)."""
    first = places ^ key.first
    scratch = torch.empty_like(first)
    _mix(first, scratch)
    first ^= key.second
    _mix(first, scratch)
    second = first + STRIDE
    _mix(second, scratch)
    return first, second


def _mix(words: Tensor, scratch: Tensor) -> None:
    """Mix the bits of each int32 word in place."""
    for shift, multiplier in zip(SHIFTS, MULTIPLIERS, strict=True):
        _xor_shifted(words, shift, scratch)
        words *= multiplier
    _xor_shifted(words, LAST_SHIFT, scratch)


def _xor_shifted(words: Tensor, shift: int, scratch: Tensor) -> None:
    torch.bitwise_right_shift(words, shift, out=scratch)
    scratch &= (1 << 32 - shift) - 1  # the shift has copied the sign bit
    words ^= scratch


def round_bits(bits: Tensor, random: Tensor, dropped: int) -> Tensor:
    """fp32 `bits` (int32) without the `dropped` lowest ones, rounded up in magnitude or not.

    `random` is int32, uniform over 0 … 2**dropped - 1: the chance to round up is the share of the
    step that is dropped, so the mean is exact. What is not finite stays what it is.
    """
    carry = random.masked_fill((bits & NOT_FINITE) == NOT_FINITE, 0)
    carry += bits
    carry >>= dropped
    return carry
