"""Boundary activations: the saved input of every layer, per microbatch, on the device or the host.

Kept from the forward pass of a layer to its backward pass. On the host they lie in one pinned
slot, each (layer, microbatch) at a fixed place.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace.storage import Fence, Transfer

from .sizes import NUM_ACTIVATION_BUFFERS
from .state import Slot


class DeviceActivations:
    """Boundary activations that stay on the device."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Tensor] = {}

    def keep(self, layer: int, microbatch: int, hidden: Tensor) -> None:
        """Keep the input of `layer`, shape (rows, tokens, hidden)."""
        self._kept[layer, microbatch] = hidden

    def fetch(self, layer: int, microbatch: int) -> Tensor:
        """Give the input back and let go of it."""
        return self._kept.pop((layer, microbatch))


@dataclass(slots=True, eq=False)
class _Buffer:
    """Device room for one boundary activation on its way, and its last copy."""

    room: Tensor
    free: Fence = field(default_factory=Fence)


class HostActivations:
    """Boundary activations that wait in a host slot: copied down in forward, up in backward.

    Copies are ordered by events and overlap compute: two buffers down, and two up, of which one is
    read ahead. Backward fetches in the order (last layer, microbatch 0), (last layer, 1), ….
    """

    def __init__(
        self,
        slot: Slot,
        *,
        transfer: Transfer,
        device: torch.device,
        dtype: torch.dtype,
        shapes: Sequence[tuple[int, ...]],
    ) -> None:
        """`shapes` are the hidden shapes (rows, tokens, hidden) of the step's microbatches."""
        self._slot = slot
        self._transfer = transfer
        self._dtype = dtype
        self._shapes = [torch.Size(shape) for shape in shapes]
        sizes = [shape.numel() * dtype.itemsize for shape in self._shapes]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._layer_bytes = sum(sizes)
        largest = max(shape.numel() for shape in self._shapes)
        buffers = [
            _Buffer(torch.empty(largest, dtype=dtype, device=device))
            for _ in range(NUM_ACTIVATION_BUFFERS)
        ]
        half = NUM_ACTIVATION_BUFFERS // 2
        self._down, self._up = deque(buffers[:half]), deque(buffers[half:])
        self._kept: dict[int, Fence] = {}  # by layer: its last copy down
        self._fetched: dict[tuple[int, int], _Buffer] = {}

    def keep(self, layer: int, microbatch: int, hidden: Tensor) -> None:
        """Copy the input of `layer`, shape (rows, tokens, hidden), to the host."""
        buffer = self._down[0]
        self._down.rotate(-1)
        buffer.free.order()
        room = buffer.room[: hidden.numel()]
        room.copy_(hidden.reshape(-1))
        buffer.free = self._transfer.to_host(
            room, self._place(layer, microbatch), after=self._transfer.fence(), urgent=True
        )
        self._kept[layer] = buffer.free

    def fetch(self, layer: int, microbatch: int) -> Tensor:
        """Give the input back, on the device until the next but one is fetched."""
        buffer = self._fetched.pop((layer, microbatch), None)
        if buffer is None:
            buffer = self._copy_up(layer, microbatch)
        if (following := self._following(layer, microbatch)) is not None:
            self._fetched[following] = self._copy_up(*following)
        buffer.free.order()
        shape = self._shapes[microbatch]
        return buffer.room[: shape.numel()].view(shape)

    def _following(self, layer: int, microbatch: int) -> tuple[int, int] | None:
        if microbatch + 1 < len(self._shapes):
            return layer, microbatch + 1
        earlier = [other for other in self._kept if other < layer]
        return (max(earlier), 0) if earlier else None

    def _copy_up(self, layer: int, microbatch: int) -> _Buffer:
        buffer = self._up[0]
        self._up.rotate(-1)
        place = self._place(layer, microbatch)
        buffer.free = self._transfer.to_device(
            place,
            buffer.room[: place.numel()],
            after=(self._transfer.fence(), self._kept[layer]),
            urgent=True,
        )
        return buffer

    def _place(self, layer: int, microbatch: int) -> Tensor:
        offset = layer * self._layer_bytes + self._starts[microbatch]
        return self._slot.tensor(self._dtype, self._shapes[microbatch].numel(), offset)


Activations = DeviceActivations | HostActivations
