"""Pieces of memory that operations of a store hold while they use them."""

import threading

import torch

from .errors import Misuse


class Slot:
    """A piece of memory that operations of a store hold while they use it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._bytes = tensor
        self._holds = 0
        self._quarantine = ""
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._bytes.numel()

    def tensor(self, dtype: torch.dtype, num_elements: int, offset_bytes: int = 0) -> torch.Tensor:
        """A 1-D tensor of `num_elements` over the bytes from `offset_bytes` on; no copy."""
        return _typed(self._bytes, dtype, num_elements, offset_bytes)

    @property
    def in_use(self) -> bool:
        """True while an operation of a store uses the slot."""
        return self._holds > 0

    def hold(self) -> None:
        """An operation begins to use the slot."""
        with self._lock:
            self._holds += 1

    def release(self) -> None:
        """An operation is over; the last one ends a quarantine."""
        with self._lock:
            self._holds -= 1
            if self._holds == 0:
                self._quarantine = ""

    def quarantine(self, why: str) -> None:
        """Refuse further use until the operations under way have come to their end."""
        with self._lock:
            if self._holds:
                self._quarantine = why

    def check_usable(self) -> None:
        """Raise Misuse while the slot is quarantined."""
        if self._quarantine:
            raise Misuse(
                f"the slot is not to be used while bytes may still arrive in it: {self._quarantine}"
            )


class HostSlot(Slot):
    """A page-aligned piece of the host arena."""

    on_device = False

    def __init__(self, view: memoryview, tensor: torch.Tensor) -> None:
        """Use HostArena.carve."""
        super().__init__(tensor)
        self._view = view

    @property
    def view(self) -> memoryview:
        """The bytes, writable."""
        return self._view


def _typed(
    source: torch.Tensor, dtype: torch.dtype, num_elements: int, offset_bytes: int
) -> torch.Tensor:
    stop = offset_bytes + num_elements * dtype.itemsize
    if offset_bytes < 0 or num_elements < 0 or stop > source.numel():
        raise Misuse(
            f"{num_elements} elements of {dtype} from byte {offset_bytes} on end at byte {stop}; "
            f"the slot has {source.numel()}"
        )
    return source[offset_bytes:stop].view(dtype)
