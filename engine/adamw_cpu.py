"""AdamW on a record in host memory, with every core: one fused pass, or the twin in chunks.

Both forms give the bits of `adamw_torch`. Which one there is depends on numba alone, and the run's
first event and `headrace doctor` say which.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .adamw import AdamScalars, adamw_torch
from .adamw_compact import adamw_matrices_torch
from .config import StateFormat
from .cores import usable_cores
from .ranges import RangePool
from .rounding import RoundingKey
from .state import LayerViews, MatrixViews, RecordViews, StateViews, copy_state, rest_bits

fused: Any
_missing = ""
try:
    from . import adamw_numba as fused
except ImportError as error:
    fused, _missing = None, str(error)

# A chunk of the twin stays in the second-level cache with its scratch, and below the length from
# which torch would start threads of its own.
TWIN_CHUNK = 2**15


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuKernel:
    """How the update is done on the CPU: `fused` or `chunked`, and why, in words."""

    form: str
    why: str


def cpu_kernel() -> CpuKernel:
    """The form of the CPU's update in this process."""
    if fused is None:
        return CpuKernel(form="chunked", why=f"numba cannot be used ({_missing})")
    return CpuKernel(form="fused", why=f"compiled by numba {fused.numba.__version__}")


def compile_update(
    state_format: StateFormat, grad_dtype: torch.dtype, *, aside: bool = False
) -> None:
    """Compile what a format's update needs, so that no step waits for it; `aside`: into a second
    version of the state.

    Every format uses an exact kernel: of a compact one the vectors are exact.
    """
    if fused is None:
        return
    bf16 = grad_dtype == torch.bfloat16
    fused.exact_kernel(bf16)
    if state_format == "exact":
        if aside:
            fused.aside_kernel(bf16)
        return
    from .compact_numba import compact_kernel

    compact_kernel(
        rest_bits=8 if state_format == "q8" else 0,
        coded=state_format != "sr_bf16",
        bf16_grad=bf16,
    )


def adamw_cpu(
    state: RecordViews,
    grad: Tensor,
    factor: float,
    scalars: AdamScalars,
    *,
    pool: RangePool | None = None,
    source: RecordViews | None = None,
) -> None:
    """Update weights and moments in place with `grad * factor`, ranges shared by threads.

    With a `source` the state before is read there, and stays as it is.
    `grad` is flat fp32 or bf16 in host memory, of the components' length; `factor` an fp32 value.
    """
    pool = pool or _all_cores()
    if isinstance(source, StateViews) and isinstance(state, StateViews) and fused is not None:
        adamw_fused_aside(pool, source, state, grad, factor, scalars)
        return
    if source is not None:
        copy_state(source, state)
    if isinstance(state, LayerViews):
        count = state.matrices.hi.numel()
        update = compact_chunked if fused is None else compact_fused
        update(pool, state.matrices, grad[:count], factor, scalars)
        state, grad = state.vectors, grad[count:]
    if fused is None:
        adamw_chunked(pool, state, grad, factor, scalars)
    else:
        adamw_fused(pool, state, grad, factor, scalars)


@cache
def _all_cores() -> RangePool:
    return RangePool(usable_cores(), "cpu-optimizer")


def adamw_fused(
    pool: RangePool, state: StateViews, grad: Tensor, factor: float, scalars: AdamScalars
) -> None:
    """The update in one pass by numba's kernels; arguments as `adamw_cpu`."""
    kernel = fused.exact_kernel(grad.dtype == torch.bfloat16)
    arrays = (*_arrays(state), _grad_array(grad))
    values = [np.float32(value) for value in (factor, *scalars.floats().values())]
    pool.run(grad.numel(), lambda start, stop: kernel(*arrays, start, stop, *values))


def adamw_fused_aside(
    pool: RangePool,
    source: StateViews,
    state: StateViews,
    grad: Tensor,
    factor: float,
    scalars: AdamScalars,
) -> None:
    """The update from `source` into `state` in one pass; other arguments as `adamw_cpu`."""
    bf16 = grad.dtype == torch.bfloat16
    kernel = fused.aside_kernel(bf16)
    arrays = (*_arrays(source), *_arrays(state), _grad_array(grad))
    values = [np.float32(value) for value in (factor, *scalars.floats().values())]
    pool.run(grad.numel(), lambda start, stop: kernel(*arrays, start, stop, *values))


def _arrays(state: StateViews) -> tuple[np.ndarray[Any, Any], ...]:
    hi = state.hi.view(torch.int16)
    return hi.numpy(), state.lo.numpy(), state.exp_avg.numpy(), state.exp_avg_sq.numpy()


def _grad_array(grad: Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = (
        grad.view(torch.int16) if grad.dtype == torch.bfloat16 else grad
    ).numpy()
    return array


def adamw_chunked(
    pool: RangePool, state: StateViews, grad: Tensor, factor: float, scalars: AdamScalars
) -> None:
    """The update by the twin, a cache's worth at a time; arguments as `adamw_cpu`."""
    scale = torch.tensor(factor)

    def work(start: int, stop: int) -> None:
        parts = (state.hi, state.lo, state.exp_avg, state.exp_avg_sq)
        piece = StateViews(*(part[start:stop] for part in parts))
        adamw_torch(piece, grad[start:stop], scale, scalars, chunk=TWIN_CHUNK)

    pool.run(grad.numel(), work)


def compact_fused(
    pool: RangePool, state: MatrixViews, grad: Tensor, factor: float, scalars: AdamScalars
) -> None:
    """The update of matrices in one pass by a numba kernel; arguments as `adamw_cpu`."""
    from .compact_numba import compact_kernel

    bases = [one for one in (state.exp_avg_base, state.exp_avg_sq_base) if one is not None]
    coded, bf16 = len(bases) > 0, grad.dtype == torch.bfloat16
    kernel = compact_kernel(rest_bits=rest_bits(state.rest), coded=coded, bf16_grad=bf16)
    hi = state.hi.view(torch.int16)
    held = [hi, *(one.view(torch.int16) for one in (state.exp_avg, state.exp_avg_sq))]
    if coded:
        rest = hi.view(torch.int8) if state.rest is None else state.rest
        held = [hi, rest, state.exp_avg, state.exp_avg_sq, *bases]
    arrays = [one.numpy() for one in (*held, grad.view(torch.int16) if bf16 else grad)]
    key = RoundingKey.of(scalars.seed, scalars.update, state.record)
    halves = [np.uint32(half % 2**32) for half in (key.first, key.second)]
    values = [np.float32(value) for value in (factor, *scalars.floats().values())]
    pool.run(grad.numel(), lambda start, stop: kernel(*arrays, start, stop, *halves, *values))


def compact_chunked(
    pool: RangePool, state: MatrixViews, grad: Tensor, factor: float, scalars: AdamScalars
) -> None:
    """The update of matrices by the twin, a cache's worth at a time; arguments as `adamw_cpu`."""
    scale = torch.tensor(factor)

    def work(start: int, stop: int) -> None:
        adamw_matrices_torch(state, grad, scale, scalars, span=(start, stop), chunk=TWIN_CHUNK)

    pool.run(grad.numel(), work)
