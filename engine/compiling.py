"""What the compiler of layers is told: for how many shapes, and which sizes never change."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_MAX_COMPILED = 64  # forms of a layer: its kinds, and the shapes of microbatches


def start_compiler() -> None:
    """Let a layer be compiled for so many shapes, and fail where it would be for more.

    Torch counts what it compiled for every model of the process, and beyond its limit it goes on
    uncompiled, with other bits. What it holds of earlier models is dropped; files of it are kept.
    """
    torch.compiler.reset()
    settings: Any = torch._dynamo.config  # its settings have no types
    settings.recompile_limit = _MAX_COMPILED
    settings.fail_on_recompile_limit_hit = True


def mark_sizes(
    weights: Sequence[Tensor], hidden: Tensor, positions: tuple[Tensor, Tensor, Any]
) -> None:
    """Tell the compiler which sizes never change.

    Compiled for any sizes, it would take those of the weights as unknown too, and a microbatch as
    long as a layer is wide for one that always is.
    """
    for weight in weights:
        torch._dynamo.mark_static(weight)
    for tensor in (hidden, *positions[:2]):
        torch._dynamo.mark_static(tensor, tensor.dim() - 1)
