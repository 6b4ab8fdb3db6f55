"""AdamW on exact elements, in place on their four components, a fixed list of IEEE fp32 operations.

Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), in the order of PyTorch's
AdamW. Every operation rounds once to fp32 (no fused multiply-add) and every scalar is rounded to
fp32 once, on the host, so that any device that follows IEEE 754 gives the same bits.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from .config import TrainConfig
from .state import CHUNK_ELEMENTS, StateViews, join_master, split_master


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamScalars:
    """The scalars of one optimizer step, each rounded once to fp32, and what keys its rounding."""

    beta1: float
    one_minus_beta1: float
    beta2: float
    one_minus_beta2: float
    eps: float
    decay: float  # 1 - rate * weight_decay
    step_size: float  # rate / (1 - beta1 ** t)
    root_scale: float  # 1 / sqrt(1 - beta2 ** t)
    seed: int = 0
    update: int = 0

    @classmethod
    def at(cls, update: int, *, learning_rate: float, config: TrainConfig) -> "AdamScalars":
        """Scalars of the `update`-th update (from 1); skipped steps are not updates."""
        exact = {
            "beta1": config.beta1,
            "one_minus_beta1": 1 - config.beta1,
            "beta2": config.beta2,
            "one_minus_beta2": 1 - config.beta2,
            "eps": config.eps,
            "decay": 1 - learning_rate * config.weight_decay,
            "step_size": learning_rate / (1 - config.beta1**update),
            "root_scale": 1 / math.sqrt(1 - config.beta2**update),
        }
        rounded = {name: float(np.float32(value)) for name, value in exact.items()}
        return cls(**rounded, seed=config.seed, update=update)

    def floats(self) -> dict[str, float]:
        """The fp32 scalars by name, in the order of the operations' arguments."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.type is float}


def adamw_torch(
    state: StateViews,
    grad: Tensor,
    factor: Tensor,
    scalars: AdamScalars,
    *,
    chunk: int | None = None,
) -> None:
    """The update in plain torch, `chunk` elements at a time: the twin of the compiled kernels."""
    chunk = chunk or (CHUNK_ELEMENTS if grad.device.type == "cpu" else 64 * CHUNK_ELEMENTS)
    master = torch.empty(min(chunk, grad.numel()), dtype=torch.float32, device=grad.device)
    scratch = torch.empty_like(master)
    clipped = torch.empty_like(master)
    tensors = (state.hi, state.lo, state.exp_avg, state.exp_avg_sq, grad)
    for hi, lo, m, v, g in zip(*(torch.split(tensor, chunk) for tensor in tensors), strict=True):
        p, t, gc = (buffer[: g.numel()] for buffer in (master, scratch, clipped))
        gc.copy_(g)
        gc *= factor
        join_master(hi, lo, p)
        adamw_operations(p, m, v, gc, t, scalars)
        split_master(p, hi, lo)


def adamw_operations(
    p: Tensor, m: Tensor, v: Tensor, g: Tensor, scratch: Tensor, scalars: AdamScalars
) -> None:
    """The update of weights `p` and moments `m`, `v` with gradient `g`, all fp32, in place."""
    p *= scalars.decay
    torch.mul(g, scalars.one_minus_beta1, out=scratch)
    m *= scalars.beta1
    m += scratch
    torch.mul(g, g, out=scratch)
    scratch *= scalars.one_minus_beta2
    v *= scalars.beta2
    v += scratch
    _sqrt(v, scratch)
    scratch *= scalars.root_scale
    scratch += scalars.eps
    torch.div(m, scratch, out=scratch)
    scratch *= scalars.step_size
    p -= scratch


def _sqrt(values: Tensor, out: Tensor) -> None:
    """Correctly rounded square root. On the CPU numpy's, since torch's may go through a vector
    library that is off by one unit in the last place here and there."""
    if values.device.type == "cpu":
        np.sqrt(values.numpy(), out=out.numpy())
    else:
        torch.sqrt(values, out=out)
