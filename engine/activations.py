"""Boundary activations: the saved input of every layer, per microbatch, where the plan has it wait.

Kept from the forward pass of a layer to its backward pass: on the device, in pinned host memory
(one slot, each at a fixed place), or on NVMe (scratch_activations.py).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from headrace.storage import Fence, Transfer

from .homes import Order
from .parked import NUM_ACTIVATION_BUFFERS, Item, fetched_after
from .scratch_activations import ScratchActivations
from .state import Slot
from .workspace import Workspace


class Activations(Protocol):
    """Where inputs of layers wait."""

    def keep(self, layer: int, microbatch: int, hidden: Tensor) -> None:
        """Keep the input of `layer`, shape (rows, tokens, hidden)."""
        ...

    def fetch(self, layer: int, microbatch: int) -> Tensor:
        """Give the input back, to be used before the next one is fetched."""
        ...


class DeviceActivations:
    """Boundary activations that stay on the device."""

    def __init__(self) -> None:
        self._kept: dict[Item, Tensor] = {}

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
    read ahead.
    """

    def __init__(
        self,
        slot: Slot,
        *,
        transfer: Transfer,
        device: torch.device,
        dtype: torch.dtype,
        layers: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        order: Order = "layers",
    ) -> None:
        """For these layers; `shapes` are the hidden shapes (rows, tokens, hidden) of the step's
        microbatches."""
        self._slot = slot
        self._transfer = transfer
        self._dtype = dtype
        self._shapes = [torch.Size(shape) for shape in shapes]
        sizes = [shape.numel() * dtype.itemsize for shape in self._shapes]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._bases = {layer: i * sum(sizes) for i, layer in enumerate(layers)}
        largest = max(shape.numel() for shape in self._shapes)
        buffers = [
            _Buffer(torch.empty(largest, dtype=dtype, device=device))
            for _ in range(NUM_ACTIVATION_BUFFERS)
        ]
        half = NUM_ACTIVATION_BUFFERS // 2
        self._down, self._up = deque(buffers[:half]), deque(buffers[half:])
        self._kept: dict[Item, Fence] = {}  # the last copy down
        self._fetched: dict[Item, _Buffer] = {}
        self._following: dict[Item, Item] = {}
        for items in fetched_after(layers, len(shapes), order).values():
            self._following |= dict(zip(items, items[1:], strict=False))

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
        self._kept[layer, microbatch] = buffer.free

    def fetch(self, layer: int, microbatch: int) -> Tensor:
        """Give the input back, on the device until the next but one is fetched."""
        buffer = self._fetched.pop((layer, microbatch), None)
        if buffer is None:
            buffer = self._copy_up(layer, microbatch)
        if (following := self._following.get((layer, microbatch))) is not None:
            self._fetched[following] = self._copy_up(*following)
        buffer.free.order()
        shape = self._shapes[microbatch]
        return buffer.room[: shape.numel()].view(shape)

    def _copy_up(self, layer: int, microbatch: int) -> _Buffer:
        buffer = self._up[0]
        self._up.rotate(-1)
        place = self._place(layer, microbatch)
        buffer.free = self._transfer.to_device(
            place,
            buffer.room[: place.numel()],
            after=(self._transfer.fence(), self._kept.pop((layer, microbatch))),
            urgent=True,
        )
        return buffer

    def _place(self, layer: int, microbatch: int) -> Tensor:
        offset = self._bases[layer] + self._starts[microbatch]
        return self._slot.tensor(self._dtype, self._shapes[microbatch].numel(), offset)


class SplitActivations:
    """Every layer's input on the tier that it waits on."""

    def __init__(self, of_layer: Sequence[Activations]) -> None:
        self._of_layer = of_layer

    def keep(self, layer: int, microbatch: int, hidden: Tensor) -> None:
        """Keep the input of `layer`, shape (rows, tokens, hidden), on its tier."""
        self._of_layer[layer].keep(layer, microbatch, hidden)

    def fetch(self, layer: int, microbatch: int) -> Tensor:
        """Give the input back, to be used before the next one is fetched."""
        return self._of_layer[layer].fetch(layer, microbatch)


def new_activations(work: Workspace, shapes: Sequence[tuple[int, ...]]) -> Activations:
    """Those of a step whose microbatches have the hidden shapes (rows, tokens, hidden)."""
    placement = work.plan.basis.placement
    on_host, on_nvme = placement.parked("host"), placement.parked("nvme")
    homes: list[Activations] = [DeviceActivations()] * work.spec.num_layers
    if on_host:
        assert work.activation_slot is not None
        on_host_now = HostActivations(
            work.activation_slot,
            transfer=work.transfer,
            device=work.device,
            dtype=work.dtype,
            layers=on_host,
            shapes=shapes,
            order=placement.order,
        )
        for i in on_host:
            homes[i] = on_host_now
    if on_nvme:
        assert work.scratch_road is not None
        on_nvme_now = ScratchActivations(
            work.scratch_road,
            dtype=work.dtype,
            layers=on_nvme,
            shapes=shapes,
            order=placement.order,
        )
        for i in on_nvme:
            homes[i] = on_nvme_now
    return SplitActivations(homes)
