"""GPU kernels in Triton for coded frozen weights: decoding in one pass over codes and weights.

The twin in plain torch is `base_codes.decode_torch`, with the same fp32 operations in the same
order and so the same bits.
"""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


@triton.jit
def _nf4_kernel(
    codes_ptr, scales_ptr, values_ptr, out_ptr, n, BLOCK: tl.constexpr, CODES_A_SCALE: tl.constexpr
):
    block = tl.program_id(0).to(tl.int64)
    places = block * BLOCK + tl.arange(0, BLOCK)
    pairs = tl.load(codes_ptr + places, mask=places < n, other=0).to(tl.int32)
    scale = tl.load(scales_ptr + places // CODES_A_SCALE, mask=places < n, other=0.0)
    first = tl.load(values_ptr + (pairs >> 4)) * scale
    second = tl.load(values_ptr + (pairs & 15)) * scale
    both = block * (2 * BLOCK) + tl.arange(0, 2 * BLOCK)
    weights = tl.interleave(first, second)
    tl.store(out_ptr + both, weights.to(out_ptr.dtype.element_ty), mask=both < 2 * n)


@triton.jit
def _int8_kernel(
    codes_ptr, scales_ptr, out_ptr, n, steps, BLOCK: tl.constexpr, CODES_A_SCALE: tl.constexpr
):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    codes = tl.load(codes_ptr + places, mask=places < n, other=0).to(tl.float32)
    scale = tl.load(scales_ptr + places // CODES_A_SCALE, mask=places < n, other=0.0)
    weights = tl.div_rn(codes, steps) * scale
    tl.store(out_ptr + places, weights.to(out_ptr.dtype.element_ty), mask=places < n)


def decode_nf4_triton(codes: Tensor, scales: Tensor, values: Tensor, out: Tensor) -> None:
    """Write the weights of nf4 `codes` (uint8, two a byte) into `out`, fp32 or bf16, 1-D."""
    n = codes.numel()
    _nf4_kernel[(triton.cdiv(n, _BLOCK),)](
        codes,
        scales,
        values,
        out,
        n,
        BLOCK=_BLOCK,
        CODES_A_SCALE=n // scales.numel(),
        enable_fp_fusion=False,
    )


def decode_int8_triton(codes: Tensor, scales: Tensor, steps: float, out: Tensor) -> None:
    """Write the weights of int8 `codes`, of so many steps up to 1, into `out` likewise."""
    n = codes.numel()
    _int8_kernel[(triton.cdiv(n, _BLOCK),)](
        codes,
        scales,
        out,
        n,
        steps,
        BLOCK=_BLOCK,
        CODES_A_SCALE=n // scales.numel(),
        enable_fp_fusion=False,
    )
