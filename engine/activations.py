"""Boundary activations: the saved input of every layer, per microbatch, on the device or the host.

Kept from the forward pass of a layer to its backward pass. On the host they lie in one pinned
slot, each (layer, microbatch) at a fixed place.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from headrace.storage import Transfer

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


class HostActivations:
    """Boundary activations that wait in a host slot: copied down in forward, up in backward."""

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
        self._device = device
        self._dtype = dtype
        self._shapes = [torch.Size(shape) for shape in shapes]
        sizes = [shape.numel() * dtype.itemsize for shape in self._shapes]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._layer_bytes = sum(sizes)

    def keep(self, layer: int, microbatch: int, hidden: Tensor) -> None:
        """Copy the input of `layer`, shape (rows, tokens, hidden), to the host."""
        flat = hidden.reshape(-1)
        fence = self._transfer.to_host(
            flat, self._place(layer, microbatch), after=self._transfer.fence()
        )
        # The caller may reuse or free `hidden` on the compute stream as soon as this returns.
        fence.order()

    def fetch(self, layer: int, microbatch: int) -> Tensor:
        """Copy the input back to the device."""
        place = self._place(layer, microbatch)
        target = torch.empty(self._shapes[microbatch], dtype=self._dtype, device=self._device)
        fence = self._transfer.to_device(place, target.view(-1), after=self._transfer.fence())
        fence.order()
        return target

    def _place(self, layer: int, microbatch: int) -> Tensor:
        offset = layer * self._layer_bytes + self._starts[microbatch]
        return self._slot.tensor(self._dtype, self._shapes[microbatch].numel(), offset)


Activations = DeviceActivations | HostActivations
