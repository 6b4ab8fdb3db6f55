"""AdamW on matrices in a compact format, in one pass on the GPU; twin of adamw_compact.py.

A program updates four blocks of 256 elements. Operations and their order are those of the twin,
so that every bit is the same: no fused multiply-add, correctly rounded division and square root.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .rounding import RoundingKey
from .state import MatrixViews, rest_bits
from .state_record import BLOCK_ELEMENTS

_BLOCKS = 4  # a program
_STRIDE = tl.constexpr(0x9E3779B9)
_FIRST_MULTIPLIER = tl.constexpr(0x21F0AAAD)
_SECOND_MULTIPLIER = tl.constexpr(0xD35A2D97)
_NOT_FINITE = tl.constexpr(0x7F800000)
_MAGNITUDE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _mix(words):
    words = (words ^ (words >> 16)) * tl.cast(_FIRST_MULTIPLIER, tl.uint32)
    words = (words ^ (words >> 15)) * tl.cast(_SECOND_MULTIPLIER, tl.uint32)
    return words ^ (words >> 15)


@triton.jit
def _round(bits, random, dropped: tl.constexpr):
    """rounding.round_bits: `random` is int32 of `dropped` bits."""
    finite = (bits & _NOT_FINITE) != _NOT_FINITE
    return (bits + tl.where(finite, random, 0)) >> dropped


@triton.jit
def _widen_code(codes, bases, signed: tl.constexpr):
    """moment_codes.decode_exp_avg (signed) and decode_exp_avg_sq: fp32 values."""
    wide = codes.to(tl.int32)
    magnitudes = wide & 0x7F if signed else wide
    bits = tl.where(magnitudes == 0, 0, (magnitudes + bases.to(tl.int32)) << 20)
    if signed:
        bits = bits | ((wide & 0x80) << 24)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _store_coded(m_ptr, v_ptr, m_base_ptr, v_base_ptr, offsets, mask, blocks, whole,
                 m_bits, v_bits, for_m, for_v):  # fmt: skip
    """moment_codes.encode_exp_avg and encode_exp_avg_sq."""
    m_steps = _round(m_bits & _MAGNITUDE, (for_m << 4) + 8, 20)
    m_base = tl.maximum(tl.max(m_steps, axis=1, keep_dims=True) - 127, 0)
    m_codes = m_steps - m_base
    m_codes = tl.where(m_codes < 1, 0, m_codes | ((m_bits >> 24) & 0x80))
    v_steps = _round(v_bits, for_v & 0xFFFFF, 20)
    v_base = tl.maximum(tl.max(v_steps, axis=1, keep_dims=True) - 255, 0)
    v_codes = tl.where(v_bits == 0, 0, tl.maximum(v_steps - v_base, 1))
    tl.store(m_base_ptr + blocks, m_base.to(tl.int16), mask=whole)
    tl.store(v_base_ptr + blocks, v_base.to(tl.int16), mask=whole)
    tl.store(m_ptr + offsets, m_codes.to(tl.uint8), mask=mask)
    tl.store(v_ptr + offsets, v_codes.to(tl.uint8), mask=mask)


@triton.jit(do_not_specialize=["key_first", "key_second"])
def _kernel(
    hi_ptr, rest_ptr, m_ptr, v_ptr, m_base_ptr, v_base_ptr, g_ptr, factor_ptr, num_blocks,
    key_first, key_second, beta1, one_minus_beta1, beta2, one_minus_beta2, eps, decay, step_size,
    root_scale, REST_BITS: tl.constexpr, CODED: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    blocks = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)[:, None]
    offsets = blocks * BLOCK + tl.arange(0, BLOCK)[None, :]
    whole = blocks < num_blocks
    mask = tl.broadcast_to(whole, (BLOCKS, BLOCK))

    # What is held, widened to fp32.
    bits = tl.load(hi_ptr + offsets, mask=mask, other=0).to(tl.int32) << REST_BITS
    if REST_BITS:
        bits += tl.load(rest_ptr + offsets, mask=mask, other=0).to(tl.int32)
    p = (bits << (16 - REST_BITS)).to(tl.float32, bitcast=True)
    m = tl.load(m_ptr + offsets, mask=mask, other=0)
    v = tl.load(v_ptr + offsets, mask=mask, other=0)
    if CODED:
        m = _widen_code(m, tl.load(m_base_ptr + blocks, mask=whole, other=0), True)
        v = _widen_code(v, tl.load(v_base_ptr + blocks, mask=whole, other=0), False)
    else:
        m = (m.to(tl.int32) << 16).to(tl.float32, bitcast=True)
        v = (v.to(tl.int32) << 16).to(tl.float32, bitcast=True)

    # The operations of adamw.py.
    g = tl.load(g_ptr + offsets, mask=mask, other=0).to(tl.float32) * tl.load(factor_ptr)
    p = p * decay
    m = m * beta1 + g * one_minus_beta1
    v = v * beta2 + (g * g) * one_minus_beta2
    denominator = tl.sqrt_rn(v) * root_scale + eps
    p = p - tl.div_rn(m, denominator) * step_size

    # Random bits, and what is kept.
    words = offsets.to(tl.uint32) ^ key_first.to(tl.uint32, bitcast=True)
    words = _mix(_mix(words) ^ key_second.to(tl.uint32, bitcast=True))
    for_v = _mix(words + tl.cast(_STRIDE, tl.uint32)).to(tl.int32, bitcast=True)
    for_m = (words & 0xFFFF).to(tl.int32)
    for_weight = (words >> (16 + REST_BITS)).to(tl.int32)
    kept = _round(p.to(tl.int32, bitcast=True), for_weight, 16 - REST_BITS)
    if REST_BITS:
        rounded = (kept + (1 << (REST_BITS - 1))) >> REST_BITS
        tl.store(rest_ptr + offsets, (kept - (rounded << REST_BITS)).to(tl.int8), mask=mask)
        kept = rounded
    tl.store(hi_ptr + offsets, kept.to(tl.int16), mask=mask)
    m_bits, v_bits = m.to(tl.int32, bitcast=True), v.to(tl.int32, bitcast=True)
    if CODED:
        _store_coded(m_ptr, v_ptr, m_base_ptr, v_base_ptr, offsets, mask, blocks, whole,
                     m_bits, v_bits, for_m, for_v)  # fmt: skip
    else:
        tl.store(m_ptr + offsets, _round(m_bits, for_m, 16).to(tl.int16), mask=mask)
        tl.store(v_ptr + offsets, _round(v_bits, for_v & 0xFFFF, 16).to(tl.int16), mask=mask)


def adamw_matrices_triton(
    state: MatrixViews,
    grad: Tensor,
    factor: Tensor,
    scalars: dict[str, float],
    key: RoundingKey,
) -> None:
    """One update in place with `grad * factor`; `grad` is flat, bf16 or fp32.

    `factor` is an fp32 scalar on the device, `scalars` those of AdamScalars by name.
    """
    num_blocks = grad.numel() // BLOCK_ELEMENTS
    coded = state.exp_avg_base is not None
    hi = state.hi.view(torch.int16)
    moments = (state.exp_avg, state.exp_avg_sq)
    _kernel[(triton.cdiv(num_blocks, _BLOCKS),)](
        hi,
        hi if state.rest is None else state.rest,
        *(moments if coded else (one.view(torch.int16) for one in moments)),
        *((state.exp_avg_base, state.exp_avg_sq_base) if coded else (hi, hi)),
        grad,
        factor,
        num_blocks,
        key.first,
        key.second,
        **scalars,
        REST_BITS=rest_bits(state.rest),
        CODED=coded,
        BLOCKS=_BLOCKS,
        BLOCK=BLOCK_ELEMENTS,
        enable_fp_fusion=False,
    )
