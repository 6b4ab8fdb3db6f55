"""The training state of a record: views of its components, and its weights as fp32 and back.

A weight's fp32 bits are rounded to 32, 24 or 16 bits and split without loss: `hi` is the bfloat16
weight that streams through the device, the rest a signed number of 16, 8 or no bits. With b such
bits: `hi = (kept + half) >> b`, `rest = kept - (hi << b)`, which always fits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from headrace.storage import RecordSpec

from .state_record import CODES, SCALES, state_record, weight_names

__all__ = [
    "CHUNK_ELEMENTS",
    "FrozenViews",
    "LayerViews",
    "MatrixViews",
    "RecordViews",
    "Slot",
    "StateViews",
    "clear_state",
    "copy_state",
    "frozen_views",
    "join_master",
    "read_weights",
    "rest_bits",
    "split_bits",
    "split_master",
    "state_bytes",
    "state_record",
    "state_views",
    "weight_names",
    "weight_views",
    "write_weights",
]
CHUNK_ELEMENTS = 2**17  # scratch stays in the processor's cache and below malloc's mmap threshold
UPPER_BITS = 16


class Slot(Protocol):
    """Memory of a tier that can be seen as flat tensors; storage's slots are such."""

    def tensor(self, dtype: torch.dtype, num_elements: int, offset_bytes: int = 0) -> Tensor:
        """A 1-D view of `num_elements` from byte `offset_bytes`."""
        ...


@dataclass(frozen=True, slots=True)
class StateViews:
    """The four components of exact elements as 1-D views of a slot: bf16, int16, fp32, fp32."""

    hi: Tensor
    lo: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


@dataclass(frozen=True, slots=True)
class FrozenViews:
    """The weights of a frozen record as 1-D views of a slot.

    `codes` and `scales` are of its coded elements, which come first; `hi`, and `lo` where there is
    one, of the others.
    """

    hi: Tensor
    lo: Tensor | None = None
    codes: Tensor | None = None
    scales: Tensor | None = None


def frozen_views(slot: Slot, record: RecordSpec) -> FrozenViews:
    """Views of a slot that holds the frozen `record`."""
    views = {
        spec.name: slot.tensor(getattr(torch, spec.dtype), spec.shape[0], record.offset(spec.name))
        for spec in record.tensors
    }
    return FrozenViews(
        views["weight_hi"], views.get("weight_lo"), views.get(CODES), views.get(SCALES)
    )


@dataclass(frozen=True, slots=True)
class MatrixViews:
    """The matrices of a layer in a compact format, 1-D views of one length.

    `rest` is int8, or absent when the weight is `hi` alone. Moments are bf16; or uint8 codes with
    an int16 base for each block of 256. `record` is the record's name: it keys the rounding.
    """

    record: str
    hi: Tensor
    rest: Tensor | None
    exp_avg: Tensor
    exp_avg_sq: Tensor
    exp_avg_base: Tensor | None = None
    exp_avg_sq_base: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LayerViews:
    """A layer in a compact format: `hi` of all elements, the matrices' first, then exact ones."""

    hi: Tensor
    matrices: MatrixViews
    vectors: StateViews


RecordViews = StateViews | LayerViews


def state_views(slot: Slot, record: RecordSpec) -> RecordViews:
    """Views of a slot that holds `record`."""
    views = {
        spec.name: slot.tensor(getattr(torch, spec.dtype), spec.shape[0], record.offset(spec.name))
        for spec in record.tensors
    }
    hi, lo = views["weight_hi"], views["weight_lo"]
    count = len(hi) - len(lo)
    exact = StateViews(hi[count:], lo, views["exp_avg"], views["exp_avg_sq"])
    if count == 0:
        return exact
    suffix = "_code" if "exp_avg_code" in views else "_hi"
    matrices = MatrixViews(
        record=record.name,
        hi=hi[:count],
        rest=views.get("weight_rest"),
        exp_avg=views["exp_avg" + suffix],
        exp_avg_sq=views["exp_avg_sq" + suffix],
        exp_avg_base=views.get("exp_avg_base"),
        exp_avg_sq_base=views.get("exp_avg_sq_base"),
    )
    return LayerViews(hi, matrices, exact)


def weight_views(slot: Slot, record: RecordSpec, names: Sequence[str]) -> RecordViews:
    """Views of a slot that holds the weights alone, the first components of `record`.

    `names` are all that fp32 compute reads; the other views are empty.
    """
    return state_views(_Head(slot, record, names), record)


@dataclass(frozen=True, slots=True)
class _Head:
    """A slot that has some of a record's components, and room for none of the others."""

    slot: Slot
    record: RecordSpec
    names: Sequence[str]

    def tensor(self, dtype: torch.dtype, num_elements: int, offset_bytes: int = 0) -> Tensor:
        """The component that lies there; empty when it is not one of those."""
        held = {self.record.offset(name) for name in self.names}
        count = num_elements if offset_bytes in held else 0
        return self.slot.tensor(dtype, count, offset_bytes if count else 0)


def state_bytes(state: RecordViews) -> int:
    """Bytes of all components."""
    return sum(one.nbytes for one in _components(state))


def copy_state(source: RecordViews, target: RecordViews) -> None:
    """Copy all components of a record into another one of the same kind."""
    for one, other in zip(_components(source), _components(target), strict=True):
        other.copy_(one)


def _components(state: RecordViews) -> list[Tensor]:
    if isinstance(state, LayerViews):
        tensors = [getattr(state.matrices, field.name) for field in fields(MatrixViews)]
        return [one for one in tensors if isinstance(one, Tensor)] + _components(state.vectors)
    return [state.hi, state.lo, state.exp_avg, state.exp_avg_sq]


def clear_state(slot: Slot, record: RecordSpec) -> None:
    """Make every weight and moment of a slot that holds `record` zero."""
    slot.tensor(torch.uint8, record.padded_bytes).zero_()


def write_weights(state: RecordViews, weights: Tensor, start: int = 0) -> None:
    """Write fp32 `weights` (1-D) as the elements from `start` on, rounded to what is held."""
    for piece, hi, rest in _halves(state, weights, start):
        split_master(piece, hi, rest)


def read_weights(state: RecordViews, out: Tensor, start: int = 0) -> None:
    """Write the weights of the elements from `start` on into fp32 `out` (1-D)."""
    for piece, hi, rest in _halves(state, out, start):
        join_master(hi, rest, piece)


def _halves(
    state: RecordViews, flat: Tensor, start: int
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Pieces of `flat` with the halves of their weights."""
    if isinstance(state, StateViews):
        stop = start + flat.numel()
        yield flat, state.hi[start:stop], state.lo[start:stop]
        return
    matrices = state.matrices
    cut = min(max(0, matrices.hi.numel() - start), flat.numel())
    if cut:
        rest = None if matrices.rest is None else matrices.rest[start : start + cut]
        yield flat[:cut], matrices.hi[start : start + cut], rest
    if cut < flat.numel():
        yield from _halves(state.vectors, flat[cut:], start + cut - matrices.hi.numel())


def rest_bits(rest: Tensor | None) -> int:
    """Bits that a weight has besides its upper half."""
    return 0 if rest is None else 8 * rest.element_size()


def split_master(master: Tensor, hi: Tensor, rest: Tensor | None) -> None:
    """Write fp32 `master` (1-D) into bf16 `hi` and its `rest` (int16, int8 or none).

    Bits that are not held are rounded to nearest, ties away from zero.
    """
    dropped = UPPER_BITS - rest_bits(rest)
    half = 1 << dropped - 1 if dropped else 0
    chunks = _chunks(master, hi.view(torch.int16), rest)
    for source, upper, lower in chunks:
        split_bits((source.view(torch.int32) + half) >> dropped, upper, lower)


def split_bits(kept: Tensor, upper: Tensor, lower: Tensor | None) -> None:
    """Write what is kept of the bits (int32) into int16 `upper` and `lower` (int16, int8, none)."""
    if lower is None:
        upper.copy_(kept)
        return
    bits = rest_bits(lower)
    rounded = (kept + (1 << bits - 1)) >> bits
    upper.copy_(rounded)
    lower.copy_(kept - (rounded << bits))


def join_master(hi: Tensor, rest: Tensor | None, master: Tensor) -> None:
    """Write the fp32 weights of bf16 `hi` and `rest` into `master`; inverse of split_master."""
    below = rest_bits(rest)
    chunks = _chunks(master.view(torch.int32), hi.view(torch.int16), rest)
    for bits, upper, lower in chunks:
        bits.copy_(upper)
        bits <<= below
        if lower is not None:
            bits += lower
        bits <<= UPPER_BITS - below


def _chunks(
    flat: Tensor, upper: Tensor, lower: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    for start in range(0, flat.numel(), CHUNK_ELEMENTS):
        piece = slice(start, start + CHUNK_ELEMENTS)
        yield flat[piece], upper[piece], None if lower is None else lower[piece]
