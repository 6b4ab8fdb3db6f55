"""AdamW on one record where it lies, in its format, by the fastest form with the same bits."""

from torch import Tensor

from .adamw import AdamScalars, adamw_torch
from .adamw_compact import adamw_matrices
from .state import LayerViews, RecordViews

__all__ = ["AdamScalars", "adamw_torch", "adamw_update"]


def adamw_update(state: RecordViews, grad: Tensor, factor: Tensor, scalars: AdamScalars) -> None:
    """Update weights and moments in place with `grad * factor`.

    `grad` is flat fp32 or bf16 of the record's length; `factor` an fp32 scalar on its device.
    On CUDA one Triton kernel does the same operations in one pass.
    """
    if isinstance(state, LayerViews):
        count = state.matrices.hi.numel()
        adamw_matrices(state.matrices, grad[:count], factor, scalars)
        state, grad = state.vectors, grad[count:]
    if grad.device.type == "cuda":
        from .triton_kernels import adamw_triton

        parts = (state.hi, state.lo, state.exp_avg, state.exp_avg_sq)
        adamw_triton(*parts, grad, factor, scalars.floats())
        return
    adamw_torch(state, grad, factor, scalars)
