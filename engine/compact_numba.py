"""AdamW on matrices in a compact format in one pass on the CPU, compiled by numba on first use.

The operations of adamw_compact.py in their order, under the same rules as adamw_numba.py: LLVM
neither contracts nor reassociates them. Integers are cast after every operation, since numba widens
what Python's operators return.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types

from .adamw_numba import from_bfloat16, same
from .moment_codes import DROPPED_BITS, MAGNITUDES, SQUARES
from .rounding import MULTIPLIERS, NOT_FINITE, STRIDE
from .state_record import BLOCK_ELEMENTS

_FIRST, _SECOND = (np.uint32(one % 2**32) for one in MULTIPLIERS)
_STRIDE = np.uint32(STRIDE % 2**32)
_BLOCK = BLOCK_ELEMENTS
_arrays = {
    name: types.Array(getattr(types, name), 1, "C")
    for name in ("int8", "uint8", "int16", "float32")
}
_SCALARS = [*[types.intp] * 2, *[types.uint32] * 2, *[types.float32] * 9]


@numba.njit(inline="always")
def _mix(words):
    words = np.uint32(np.uint32(words ^ np.uint32(words >> np.uint32(16))) * _FIRST)
    words = np.uint32(np.uint32(words ^ np.uint32(words >> np.uint32(15))) * _SECOND)
    return np.uint32(words ^ np.uint32(words >> np.uint32(15)))


@numba.njit(inline="always")
def _first_word(place, key_first, key_second):
    return _mix(np.uint32(_mix(np.uint32(np.uint32(place) ^ key_first)) ^ key_second))


@numba.njit(inline="always")
def _second_word(first):
    return _mix(np.uint32(first + _STRIDE))


@numba.njit(inline="always")
def _round(bits, random, dropped):
    """What is kept of int32 `bits`; `random` has `dropped` bits."""
    carry = np.int32(0) if (bits & NOT_FINITE) == NOT_FINITE else np.int32(random)
    return np.int32(np.int32(bits + carry) >> dropped)


@numba.njit(inline="always")
def _float(bits):
    return np.int32(bits).view(np.float32)


@numba.njit(inline="always")
def _bits(value):
    return np.float32(value).view(np.int32)


@numba.njit(inline="always")
def _split(kept, rest_bits):
    return np.int32(np.int32(kept + (1 << (rest_bits - 1))) >> rest_bits)


@numba.njit(inline="always")
def _moved(p, m, v, decay, step_size, root_scale, eps):
    p = p * decay
    return p - (m / (math.sqrt(v) * root_scale + eps)) * step_size


@numba.njit(inline="always")
def _value(magnitude, base):
    """fp32 bits of a code's magnitude over its block's base."""
    return np.int32(0) if magnitude == 0 else np.int32((magnitude + base) << DROPPED_BITS)


@numba.njit(inline="always")
def _write_codes(m_codes, m_bits, m_steps, m_base, v_codes, v_bits, v_steps, v_base):
    for j in range(_BLOCK):
        above = np.int32(m_steps[j] - m_base)
        sign = np.int32((m_bits[j] >> 24) & 0x80)
        m_codes[j] = np.uint8(0) if above < 1 else np.uint8(above | sign)
        above = max(np.int32(v_steps[j] - v_base), np.int32(1))
        v_codes[j] = np.uint8(0) if v_bits[j] == 0 else np.uint8(above)


def _bfloat16_kernel(widen: Callable[[Any], Any]) -> Callable[..., None]:
    """For weights and moments in bf16."""

    def update(
        his, ms, vs, gs, start, stop, key_first, key_second, factor, beta1, one_minus_beta1,
        beta2, one_minus_beta2, eps, decay, step_size, root_scale,
    ):  # fmt: skip
        his, ms, vs, gs = his[start:stop], ms[start:stop], vs[start:stop], gs[start:stop]
        for i in range(stop - start):
            g = widen(gs[i]) * factor
            m = from_bfloat16(ms[i]) * beta1 + g * one_minus_beta1
            v = from_bfloat16(vs[i]) * beta2 + (g * g) * one_minus_beta2
            p = _moved(from_bfloat16(his[i]), m, v, decay, step_size, root_scale, eps)
            word = _first_word(start + i, key_first, key_second)
            other = _second_word(word)
            his[i] = np.int16(_round(_bits(p), np.int32(word >> np.uint32(16)), 16))
            ms[i] = np.int16(_round(_bits(m), np.int32(word & np.uint32(0xFFFF)), 16))
            vs[i] = np.int16(_round(_bits(v), np.int32(other & np.uint32(0xFFFF)), 16))

    return update


def _coded_kernel(widen: Callable[[Any], Any], rest_bits: int) -> Callable[..., None]:
    """For moments in 8-bit codes; weights in bf16 with a rest of 8 bits, or of none."""
    dropped = 16 - rest_bits

    def update(
        his, rests, ms, vs, m_bases, v_bases, gs, start, stop, key_first, key_second, factor,
        beta1, one_minus_beta1, beta2, one_minus_beta2, eps, decay, step_size, root_scale,
    ):  # fmt: skip
        m_bits, v_bits = np.empty(_BLOCK, np.int32), np.empty(_BLOCK, np.int32)
        m_steps, v_steps = np.empty(_BLOCK, np.int32), np.empty(_BLOCK, np.int32)
        for block in range(start // _BLOCK, stop // _BLOCK):
            m_base, v_base = np.int32(m_bases[block]), np.int32(v_bases[block])
            first = block * _BLOCK
            # Views from zero on: an index that might be negative would keep the loop from vectors.
            hi, mc, vc = his[first:], ms[first:], vs[first:]
            rest, gc = rests[first:], gs[first:]
            m_top, v_top = np.int32(0), np.int32(0)
            for j in range(_BLOCK):
                g = widen(gc[j]) * factor
                code = np.int32(mc[j])
                held = _value(np.int32(code & MAGNITUDES), m_base)
                m = _float(held | np.int32((code & 0x80) << 24)) * beta1 + g * one_minus_beta1
                v = _float(_value(np.int32(vc[j]), v_base)) * beta2 + (g * g) * one_minus_beta2
                kept = np.int32(np.int32(hi[j]) << rest_bits)
                if rest_bits > 0:
                    kept = np.int32(kept + np.int32(rest[j]))
                p = _float(np.int32(kept << dropped))
                p = _moved(p, m, v, decay, step_size, root_scale, eps)
                word = _first_word(first + j, key_first, key_second)
                other = _second_word(word)
                kept = _round(_bits(p), np.int32(word >> np.uint32(32 - dropped)), dropped)
                if rest_bits > 0:
                    upper = _split(kept, rest_bits)
                    rest[j] = np.int8(kept - (upper << rest_bits))
                    kept = upper
                hi[j] = np.int16(kept)
                spread = np.int32((np.int32(word & np.uint32(0xFFFF)) << 4) + 8)
                m_bits[j], v_bits[j] = _bits(m), _bits(v)
                m_steps[j] = _round(np.int32(m_bits[j] & 0x7FFFFFFF), spread, DROPPED_BITS)
                v_steps[j] = _round(v_bits[j], np.int32(other & np.uint32(0xFFFFF)), DROPPED_BITS)
                m_top, v_top = max(m_top, m_steps[j]), max(v_top, v_steps[j])
            m_base = max(np.int32(m_top - MAGNITUDES), np.int32(0))
            v_base = max(np.int32(v_top - SQUARES), np.int32(0))
            m_bases[block], v_bases[block] = np.int16(m_base), np.int16(v_base)
            _write_codes(mc, m_bits, m_steps, m_base, vc, v_bits, v_steps, v_base)

    return update


@cache
def compact_kernel(*, rest_bits: int, coded: bool, bf16_grad: bool) -> Callable[..., None]:
    """The kernel of a format for gradients in bf16 (their bits, int16) or fp32.

    It takes his (int16), with codes the rests (int8), exp_avg and exp_avg_sq (int16 or uint8),
    with codes their bases (int16), the gradient, start, stop (whole blocks), both halves of the
    key, factor and the scalars of AdamScalars in order. Python's lock is not held.
    """
    widen, grads = (from_bfloat16, "int16") if bf16_grad else (same, "float32")
    names = ["int16", "int8", "uint8", "uint8", "int16", "int16", grads]
    update = _coded_kernel(widen, rest_bits) if coded else _bfloat16_kernel(widen)
    if not coded:
        names = ["int16", "int16", "int16", grads]
    signature = types.void(*(_arrays[name] for name in names), *_SCALARS)
    compiled: Callable[..., None] = numba.njit(signature, nogil=True, error_model="numpy")(update)
    return compiled
