"""Fixed memory on the device, cut into slots: one allocation, never more."""

from types import TracebackType
from typing import Any, Protocol, Self

import torch

from .errors import NoSpace
from .record import round_up
from .slot import Slot

_DEVICE_ALIGNMENT = 512


class DeviceSlot(Slot):
    """A piece of the device slab."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Use DeviceSlab.carve."""
        super().__init__(tensor)
        self._after: Waitable | None = None

    @property
    def on_device(self) -> bool:
        """True when only GPUDirect Storage reaches the bytes; False on cpu."""
        return self._bytes.device.type != "cpu"

    @property
    def view(self) -> "memoryview | DeviceView":
        """The bytes, as a volume wants them."""
        if self.on_device:
            return DeviceView(self._bytes, self._after)
        return _bytes_of(self._bytes)

    def after(self, point: "Waitable") -> None:
        """Writes from the slot wait for this point: what fills it has then been done."""
        self._after = point


class Waitable(Protocol):
    """A point in the device's work, such as a Fence."""

    def wait(self) -> None:
        """Return when it has been reached."""


class DeviceView:
    """Bytes in device memory: sliced like a memoryview, seen by kvikio through its interface."""

    def __init__(self, tensor: torch.Tensor, after: Waitable | None = None) -> None:
        self._tensor = tensor
        self._after = after

    def __len__(self) -> int:
        return self._tensor.numel()

    def __getitem__(self, part: slice) -> "DeviceView":
        return DeviceView(self._tensor[part], self._after)

    @property
    def __cuda_array_interface__(self) -> Any:
        return self._tensor.__cuda_array_interface__

    def wait(self) -> None:
        """Wait until the bytes are there to be written."""
        if self._after is not None:
            self._after.wait()

    def host_copy(self) -> memoryview:
        """The bytes in host memory, for a checksum: those that a write would take."""
        self.wait()
        return _bytes_of(self._tensor.cpu())


class DeviceSlab:
    """`slab_bytes` of device memory in one allocation, cut into slots; on cpu a plain buffer."""

    def __init__(self, slab_bytes: int, device: torch.device) -> None:
        self._num_bytes = slab_bytes
        self._carved_bytes = 0
        self._bytes = torch.empty(slab_bytes, dtype=torch.uint8, device=device)

    @property
    def memory(self) -> torch.Tensor:
        """All of it, as bytes."""
        return self._bytes

    @property
    def free_bytes(self) -> int:
        """Bytes not yet carved."""
        return self._num_bytes - self._carved_bytes

    def carve(self, slot_bytes: int) -> DeviceSlot:
        """The next `slot_bytes`, in steps of 512. NoSpace, with the numbers, when they are gone."""
        wanted = round_up(slot_bytes, _DEVICE_ALIGNMENT)
        if wanted > self.free_bytes:
            raise NoSpace(
                f"the device slab has {self.free_bytes} of {self._num_bytes} bytes left; a slot of "
                f"{wanted} was wanted. Use fewer or smaller slots, or a larger slab"
            )
        start = self._carved_bytes
        self._carved_bytes = start + wanted
        return DeviceSlot(self._bytes[start : start + wanted])

    def reset(self) -> None:
        """Take all slots back; they must not be used again."""
        self._carved_bytes = 0

    def close(self) -> None:
        """Let the memory go; it is freed with the last tensor over it."""
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._num_bytes = self._carved_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    array: Any = tensor.numpy()  # a buffer, which its type does not say
    return memoryview(array)
