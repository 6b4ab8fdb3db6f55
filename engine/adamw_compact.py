"""AdamW on the matrices of a layer in a compact format: widen, update, round stochastically.

Weights and moments are widened to fp32, updated by the operations of adamw.py in their order, and
rounded to what the format holds. Every operation is an IEEE or an integer one, so that any device
gives the same bits; triton_compact.py is the GPU's form.
"""

import torch
from torch import Tensor

from .adamw import AdamScalars, adamw_operations
from .moment_codes import (
    DROPPED_BITS,
    decode_exp_avg,
    decode_exp_avg_sq,
    encode_exp_avg,
    encode_exp_avg_sq,
)
from .rounding import RoundingKey, random_words, round_bits
from .state import CHUNK_ELEMENTS, UPPER_BITS, MatrixViews, join_master, rest_bits, split_bits
from .state_record import BLOCK_ELEMENTS


def adamw_matrices_torch(
    state: MatrixViews,
    grad: Tensor,
    factor: Tensor,
    scalars: AdamScalars,
    *,
    span: tuple[int, int] | None = None,
    chunk: int = CHUNK_ELEMENTS,
) -> None:
    """Update weights and moments in place with `grad * factor`, in plain torch.

    `grad` is flat fp32 or bf16 of the matrices' length; `factor` an fp32 scalar on its device.
    Elements of `span` alone, `chunk` of them at a time; both are whole blocks.
    """
    key = RoundingKey.of(scalars.seed, scalars.update, state.record)
    first, last = span or (0, grad.numel())
    for start in range(first, last, chunk):
        stop = min(start + chunk, last)
        places = torch.arange(start, stop, device=grad.device).to(torch.int32)
        piece = _piece(state, start, stop)
        _update_piece(piece, grad[start:stop].float() * factor, random_words(key, places), scalars)


def _piece(state: MatrixViews, start: int, stop: int) -> MatrixViews:
    """The elements from `start` to `stop`, which are whole blocks."""
    elements, blocks = slice(start, stop), slice(start // BLOCK_ELEMENTS, stop // BLOCK_ELEMENTS)
    bases = (state.exp_avg_base, state.exp_avg_sq_base)
    return MatrixViews(
        state.record,
        state.hi[elements],
        None if state.rest is None else state.rest[elements],
        state.exp_avg[elements],
        state.exp_avg_sq[elements],
        *(None if base is None else base[blocks] for base in bases),
    )


def _update_piece(
    state: MatrixViews, grad: Tensor, words: tuple[Tensor, Tensor], scalars: AdamScalars
) -> None:
    """Update with a clipped fp32 gradient. The upper half of an element's first word rounds its
    weight, the lower half its first moment, the second word its second moment."""
    p, m, v = (torch.empty_like(grad, dtype=torch.float32) for _ in range(3))
    join_master(state.hi, state.rest, p)
    _read_moments(state, m, v)
    adamw_operations(p, m, v, grad, torch.empty_like(p), scalars)
    first, second = words
    below = rest_bits(state.rest)
    for_weight = (first >> UPPER_BITS + below) & (1 << UPPER_BITS - below) - 1
    kept = round_bits(p.view(torch.int32), for_weight, UPPER_BITS - below)
    split_bits(kept, state.hi.view(torch.int16), state.rest)
    _write_moments(state, m, v, first & 0xFFFF, second)


def _read_moments(state: MatrixViews, m: Tensor, v: Tensor) -> None:
    if state.exp_avg_base is None or state.exp_avg_sq_base is None:
        m.copy_(state.exp_avg)
        v.copy_(state.exp_avg_sq)
        return
    decode_exp_avg(state.exp_avg, state.exp_avg_base, m)
    decode_exp_avg_sq(state.exp_avg_sq, state.exp_avg_sq_base, v)


def _write_moments(state: MatrixViews, m: Tensor, v: Tensor, for_m: Tensor, for_v: Tensor) -> None:
    if state.exp_avg_base is None or state.exp_avg_sq_base is None:
        for values, random, target in ((m, for_m, state.exp_avg), (v, for_v, state.exp_avg_sq)):
            kept = round_bits(values.view(torch.int32), random & 0xFFFF, UPPER_BITS)
            target.view(torch.int16).copy_(kept)
        return
    spread = (for_m << DROPPED_BITS - 16) + (1 << DROPPED_BITS - 17)  # 16 random bits for 20 places
    encode_exp_avg(m, spread, state.exp_avg, state.exp_avg_base)
    random = for_v & (1 << DROPPED_BITS) - 1
    encode_exp_avg_sq(v, random, state.exp_avg_sq, state.exp_avg_sq_base)
