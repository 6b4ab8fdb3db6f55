"""GPU kernels in Triton: AdamW on the split state, and rounding a gradient with its norm.

Each has a twin in plain torch (optimizer.py, clip.py). AdamW agrees with its twin bit for bit:
the same fp32 operations in the same order, correctly rounded division and square root, and no
fused multiply-add (`enable_fp_fusion=False`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_NORM_BLOCK = 4096


@triton.jit
def _adamw_kernel(
    hi_ptr,
    lo_ptr,
    m_ptr,
    v_ptr,
    g_ptr,
    factor_ptr,
    n,
    beta1,
    one_minus_beta1,
    beta2,
    one_minus_beta2,
    eps,
    decay,
    step_size,
    root_scale,
    BLOCK: tl.constexpr,
):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    g = tl.load(g_ptr + offsets, mask=mask).to(tl.float32) * tl.load(factor_ptr)
    hi = tl.load(hi_ptr + offsets, mask=mask).to(tl.int32)
    lo = tl.load(lo_ptr + offsets, mask=mask).to(tl.int32)
    m = tl.load(m_ptr + offsets, mask=mask)
    v = tl.load(v_ptr + offsets, mask=mask)
    p = ((hi << 16) + lo).to(tl.float32, bitcast=True)
    p = p * decay
    m = m * beta1 + g * one_minus_beta1
    v = v * beta2 + (g * g) * one_minus_beta2
    denominator = tl.sqrt_rn(v) * root_scale + eps
    p = p - tl.div_rn(m, denominator) * step_size
    bits = p.to(tl.int32, bitcast=True)
    rounded = (bits + 0x8000) >> 16
    tl.store(hi_ptr + offsets, rounded.to(tl.int16), mask=mask)
    tl.store(lo_ptr + offsets, (bits - (rounded << 16)).to(tl.int16), mask=mask)
    tl.store(m_ptr + offsets, m, mask=mask)
    tl.store(v_ptr + offsets, v, mask=mask)


@triton.jit
def _round_kernel(source_ptr, target_ptr, sums_ptr, n, BLOCK: tl.constexpr):
    block = tl.program_id(0).to(tl.int64)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    values = tl.load(source_ptr + offsets, mask=mask, other=0.0)
    kept = values.to(target_ptr.dtype.element_ty)
    tl.store(target_ptr + offsets, kept, mask=mask)
    exact = kept.to(tl.float64)
    tl.store(sums_ptr + block, tl.sum(exact * exact, axis=0))


def adamw_triton(
    hi: Tensor,
    lo: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    factor: Tensor,
    scalars: dict[str, float],
) -> None:
    """One AdamW update in place; flat bf16, int16, fp32, fp32, and bf16 or fp32 `grad`.

    `factor` is an fp32 scalar on the device; `scalars` those of AdamScalars, by name.
    """
    n = grad.numel()
    _adamw_kernel[(triton.cdiv(n, _BLOCK),)](
        hi.view(torch.int16),
        lo,
        exp_avg,
        exp_avg_sq,
        grad,
        factor,
        n,
        **scalars,
        BLOCK=_BLOCK,
        enable_fp_fusion=False,
    )


def round_with_squares(source: Tensor, target: Tensor) -> Tensor:
    """Round flat fp32 `source` into `target` (its dtype); returns the sum of squares of the
    rounded values as a float64 scalar, summed in blocks of 4096 and then over the blocks."""
    n = source.numel()
    blocks = triton.cdiv(n, _NORM_BLOCK)
    sums = torch.empty(blocks, dtype=torch.float64, device=source.device)
    _round_kernel[(blocks,)](source, target, sums, n, BLOCK=_NORM_BLOCK)
    return sums.sum()
