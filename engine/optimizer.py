"""AdamW on one record where it lies: Triton on the GPU, every core on the CPU, the same bits."""

from torch import Tensor

from .adamw import AdamScalars, adamw_torch
from .adamw_cpu import adamw_cpu
from .rounding import RoundingKey
from .state import LayerViews, RecordViews

__all__ = ["AdamScalars", "adamw_torch", "adamw_update"]


def adamw_update(state: RecordViews, grad: Tensor, factor: Tensor, scalars: AdamScalars) -> None:
    """Update weights and moments in place with `grad * factor`.

    `grad` is flat fp32 or bf16 of the record's length; `factor` an fp32 scalar on its device.
    One pass over memory, by one Triton kernel on CUDA and by fused loops on the CPU's cores.
    """
    if grad.device.type == "cuda":
        if isinstance(state, LayerViews):
            from .triton_compact import adamw_matrices_triton

            matrices = state.matrices
            count = matrices.hi.numel()
            key = RoundingKey.of(scalars.seed, scalars.update, matrices.record)
            adamw_matrices_triton(matrices, grad[:count], factor, scalars.floats(), key)
            state, grad = state.vectors, grad[count:]
        from .triton_kernels import adamw_triton

        parts = (state.hi, state.lo, state.exp_avg, state.exp_avg_sq)
        adamw_triton(*parts, grad, factor, scalars.floats())
        return
    adamw_cpu(state, grad, float(factor), scalars)
