"""Weights that stay on the device while the rest of their record's state lives elsewhere.

The optimizer-only middle way (Ren et al., "ZeRO-Offload", 2021): forward and backward move no
weight, only the update does. The weights of a record lie first in it, so a cache holds its head.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace.storage import DeviceSlot, Fence, HostSlot, RecordSpec, Transfer

from .state import RecordViews, weight_views


@dataclass(slots=True, eq=False)
class CachedWeights:
    """The head of one record on the device, and what must be over before it is read."""

    record: RecordSpec
    names: tuple[str, ...]  # of the components that it holds
    device: DeviceSlot
    ready: Fence = field(default_factory=Fence)  # the last copy into it has ended
    update: "Future[None] | None" = None  # by the processor; it brings the weights up at its end

    def views(self) -> RecordViews:
        """The weights, in order behind what brings them up; moments are empty."""
        self._order()
        return weight_views(self.device, self.record, self.names)

    def hi(self) -> Tensor:
        """The upper halves alone, likewise."""
        self._order()
        return self.device.tensor(torch.bfloat16, self.record.tensor("weight_hi").shape[0])

    def _order(self) -> None:
        if self.update is not None:
            self.update.result()
            self.update = None
        self.ready.order()

    def take_from(self, slot: DeviceSlot) -> None:
        """Copy the weights of an updated record out of its slot; ordered on the compute stream."""
        size = self.device.nbytes
        self.device.tensor(torch.uint8, size).copy_(slot.tensor(torch.uint8, size))

    def bring_up(self, source: HostSlot, transfer: Transfer, after: Fence) -> None:
        """Copy the weights up from host memory, once compute has done what `after` stands for."""
        size = self.device.nbytes
        self.ready = transfer.to_device(
            source.tensor(torch.uint8, size), self.device.tensor(torch.uint8, size), after=after
        )
