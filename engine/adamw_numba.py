"""AdamW on the split state in one pass on the CPU, compiled by numba.

The operations of `adamw_torch` in their order. LLVM may neither contract nor reassociate them
(`fastmath=False`), and its division and square root are the processor's, which are correctly
rounded. A kernel is compiled when it is first asked for, which takes about a second.
"""

import math
from collections.abc import Callable
from functools import cache

import numba
import numpy as np
from numba import types

_UPPER = np.int32(16)  # the upper half of 32 bits starts here
_HALF = np.int32(0x8000)
_int16s, _float32s = types.Array(types.int16, 1, "C"), types.Array(types.float32, 1, "C")


@numba.njit(inline="always")
def same(value):
    """An fp32 gradient as it is."""
    return value


@numba.njit(inline="always")
def from_bfloat16(bits):
    """The fp32 value of bf16 bits (int16)."""
    return np.int32(np.int32(bits) << _UPPER).view(np.float32)


@cache
def exact_kernel(bf16_grad: bool) -> Callable[..., None]:
    """The kernel that updates the state in place, for flat gradients in bf16 (bits) or fp32.

    It takes his, los (int16), ms, vs (fp32), gs, start, stop, factor and the scalars of AdamScalars
    in their order, and updates elements start to stop without holding Python's lock.
    """
    widen, grads = (from_bfloat16, _int16s) if bf16_grad else (same, _float32s)

    def adamw_range(
        his,
        los,
        ms,
        vs,
        gs,
        start,
        stop,
        factor,
        beta1,
        one_minus_beta1,
        beta2,
        one_minus_beta2,
        eps,
        decay,
        step_size,
        root_scale,
    ):
        # Views from zero on: an index that might be negative would keep the loop from vectors.
        his, los, gs = his[start:stop], los[start:stop], gs[start:stop]
        ms, vs = ms[start:stop], vs[start:stop]
        for i in range(stop - start):
            g = widen(gs[i]) * factor
            p = np.int32((np.int32(his[i]) << _UPPER) + np.int32(los[i])).view(np.float32)
            p = p * decay
            m = ms[i] * beta1 + g * one_minus_beta1
            v = vs[i] * beta2 + (g * g) * one_minus_beta2
            p = p - (m / (math.sqrt(v) * root_scale + eps)) * step_size
            bits = np.float32(p).view(np.int32)
            rounded = np.int32(bits + _HALF) >> _UPPER
            his[i] = np.int16(rounded)
            los[i] = np.int16(bits - (rounded << _UPPER))
            ms[i] = m
            vs[i] = v

    arrays = (_int16s, _int16s, _float32s, _float32s, grads)
    signature = types.void(*arrays, types.intp, types.intp, *[types.float32] * 9)
    compiled: Callable[..., None] = numba.njit(signature, nogil=True, error_model="numpy")(
        adamw_range
    )
    return compiled


_BLOCK = 4096  # elements whose state stays in a core's first cache between copy and update


@cache
def aside_kernel(bf16_grad: bool) -> Callable[..., None]:
    """The kernel that reads the state in other arrays (the first four), block by block.

    It gives the bits of the one in place, since it is that one behind a copy within the cache.
    """
    update = exact_kernel(bf16_grad)

    def aside(
        from_his,
        from_los,
        from_ms,
        from_vs,
        his,
        los,
        ms,
        vs,
        gs,
        start,
        stop,
        factor,
        beta1,
        one_minus_beta1,
        beta2,
        one_minus_beta2,
        eps,
        decay,
        step_size,
        root_scale,
    ):
        for first in range(start, stop, _BLOCK):
            last = min(first + _BLOCK, stop)
            _copy(from_his[first:last], his[first:last])
            _copy(from_los[first:last], los[first:last])
            _copy(from_ms[first:last], ms[first:last])
            _copy(from_vs[first:last], vs[first:last])
            update(
                his, los, ms, vs, gs, first, last, factor, beta1, one_minus_beta1, beta2,
                one_minus_beta2, eps, decay, step_size, root_scale,
            )  # fmt: skip

    grads = _int16s if bf16_grad else _float32s
    state = (_int16s, _int16s, _float32s, _float32s)
    signature = types.void(*state, *state, grads, types.intp, types.intp, *[types.float32] * 9)
    compiled: Callable[..., None] = numba.njit(signature, nogil=True)(aside)
    return compiled


@numba.njit
def _copy(source, target):
    for i in range(len(target)):
        target[i] = source[i]
