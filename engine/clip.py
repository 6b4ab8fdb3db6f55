"""Gradient clipping: the factor for a norm, and how the norm is summed. Order is part of it."""

import torch
from torch import Tensor

# The small number keeps the factor finite at norm zero; torch's clip_grad_norm_ has the same.
NORM_EPS = 1e-6
_ROW = 4096
_ROWS = 16  # at once: their float64 copy, 512 KiB, stays in a cache and takes no fresh pages


def sum_of_squares(values: Tensor) -> Tensor:
    """Sum of squares of a flat tensor whose length is a multiple of 2048, as a float64 scalar.

    Rows of a fixed length are summed first and the row sums next, so that the result does not
    depend on how many threads share the work.
    """
    row = _ROW if values.numel() % _ROW == 0 else _ROW // 2
    sums = [
        piece.double().square_().sum(dim=1) for piece in torch.split(values.view(-1, row), _ROWS)
    ]
    return torch.cat(sums).sum()


def round_and_square(grad: Tensor, target: Tensor) -> Tensor:
    """Round flat fp32 `grad` once into `target`; the sum of squares of what `target` then holds.

    `target` may be `grad` itself. On CUDA one Triton kernel does both in one pass.
    """
    if grad.device.type == "cuda":
        from .triton_kernels import round_with_squares

        return round_with_squares(grad, target)
    if target is not grad:
        target.copy_(grad)
    missing = -target.numel() % (_ROW // 2)  # the end of a table piece
    whole = torch.nn.functional.pad(target, (0, missing)) if missing else target
    return sum_of_squares(whole)


def clip_factor(norm: Tensor, max_norm: float) -> Tensor:
    """min(1, max_norm / (norm + 1e-6)) as a float32 scalar on the norm's device.

    The formula of torch.nn.utils.clip_grad_norm_, evaluated in float64 and rounded once.
    """
    return (max_norm / (norm + NORM_EPS)).clamp(max=1.0).float()
