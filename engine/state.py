"""The training state of a record: an fp32 master in two halves and two fp32 moments.

The master's bits are split losslessly: `hi = (bits + 0x8000) >> 16` is the bfloat16 weight that
streams through the device, `lo = bits - (hi << 16)` always fits int16.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headrace.storage import RecordSpec

from .state_record import CODES, SCALES, STATE, WEIGHTS, state_record

__all__ = [
    "CHUNK_ELEMENTS",
    "FrozenViews",
    "STATE",
    "WEIGHTS",
    "Slot",
    "StateViews",
    "frozen_views",
    "join_master",
    "split_master",
    "state_record",
    "read_weights",
    "state_views",
    "write_weights",
]
CHUNK_ELEMENTS = 2**17  # scratch stays in the processor's cache and below malloc's mmap threshold


class Slot(Protocol):
    """Memory of a tier that can be seen as flat tensors; storage's slots are such."""

    def tensor(self, dtype: torch.dtype, num_elements: int, offset_bytes: int = 0) -> Tensor:
        """A 1-D view of `num_elements` from byte `offset_bytes`."""
        ...


@dataclass(frozen=True, slots=True)
class StateViews:
    """The four components of a record as 1-D views of a slot: bf16, int16, fp32, fp32."""

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


def state_views(slot: Slot, record: RecordSpec) -> StateViews:
    """Views of a slot that holds `record`."""
    views = [
        slot.tensor(getattr(torch, spec.dtype), spec.shape[0], record.offset(spec.name))
        for spec in record.tensors
    ]
    return StateViews(*views)


def write_weights(state: StateViews, weights: Tensor, start: int = 0) -> None:
    """Write fp32 `weights` (1-D) as the elements from `start` on."""
    stop = start + weights.numel()
    split_master(weights, state.hi[start:stop], state.lo[start:stop])


def read_weights(state: StateViews, out: Tensor, start: int = 0) -> None:
    """Write the weights of the elements from `start` on into fp32 `out` (1-D)."""
    stop = start + out.numel()
    join_master(state.hi[start:stop], state.lo[start:stop], out)


def split_master(master: Tensor, hi: Tensor, lo: Tensor) -> None:
    """Write the halves of fp32 `master` (1-D) into bf16 `hi` and int16 `lo`."""
    pieces = (torch.split(tensor, CHUNK_ELEMENTS) for tensor in (master, hi.view(torch.int16), lo))
    for source, upper, lower in zip(*pieces, strict=True):
        bits = source.view(torch.int32)
        rounded = (bits + 0x8000) >> 16
        upper.copy_(rounded)
        lower.copy_(bits - (rounded << 16))


def join_master(hi: Tensor, lo: Tensor, master: Tensor) -> None:
    """Write the fp32 master of bf16 `hi` and int16 `lo` into `master`; inverse of split_master."""
    pieces = (
        torch.split(tensor, CHUNK_ELEMENTS)
        for tensor in (hi.view(torch.int16), lo, master.view(torch.int32))
    )
    for upper, lower, bits in zip(*pieces, strict=True):
        bits.copy_(upper)
        bits <<= 16
        bits += lower
