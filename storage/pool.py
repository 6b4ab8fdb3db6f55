"""Fixed memory, cut exactly: one host arena for staging, one slab on the device.

The host arena is private anonymous memory on huge pages, aligned for direct I/O, and registered
with CUDA once when asked. What it costs is what was asked for, plus less than 2 MiB.
"""

import logging
import mmap
import threading
from types import TracebackType
from typing import Self

import torch

from .errors import Misuse, NoSpace
from .pin import register, unregister
from .record import PAGE_BYTES, round_up

log = logging.getLogger(__name__)

_HUGE_PAGE_BYTES = 2 << 20
_DEVICE_ALIGNMENT = 512
# A fork must not share pages that direct I/O or CUDA write to. Not MADV_DONTFORK: in the child the
# address is then free for others, and the mmap object, once collected there, unmaps theirs.
_MADV_WIPEONFORK = 18


class HostSlot:
    """A page-aligned piece of the host arena."""

    def __init__(self, view: memoryview, tensor: torch.Tensor) -> None:
        """Use HostArena.carve."""
        self._view = view
        self._bytes = tensor
        self._holds = 0
        self._quarantine = ""
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return len(self._view)

    @property
    def view(self) -> memoryview:
        """The bytes, writable."""
        return self._view

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
            raise Misuse(f"the slot is not to be used while bytes may still arrive in it: "
                         f"{self._quarantine}")  # fmt: skip


class HostArena:
    """`arena_bytes` of host memory, cut into slots from the front; a context manager."""

    def __init__(self, arena_bytes: int, *, pin: bool = False) -> None:
        """Map the memory; with `pin`, populate it and register it with CUDA.

        Raises Misuse when `pin` is asked for without CUDA, NoSpace when registering fails.
        """
        if arena_bytes < 0:
            raise ValueError(f"an arena of {arena_bytes} bytes cannot be")
        if pin and not torch.cuda.is_available():
            raise Misuse("a pinned arena needs CUDA; use pin=False")
        self._num_bytes = arena_bytes
        self._carved_bytes = 0
        self._slots: list[HostSlot] = []
        self._pinned: list[int] = []  # addresses registered with CUDA
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._map = mmap.mmap(-1, arena_bytes + _HUGE_PAGE_BYTES, flags=flags)
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self._map.madvise(_MADV_WIPEONFORK)
        self._view, self._bytes = _aligned(self._map, arena_bytes)
        if pin:
            self._pinned = register(self._bytes.data_ptr(), arena_bytes)

    @property
    def free_bytes(self) -> int:
        """Bytes not yet carved."""
        return self._num_bytes - self._carved_bytes

    @property
    def pinned(self) -> bool:
        """True when the memory is registered with CUDA."""
        return bool(self._pinned)

    def carve(self, slot_bytes: int) -> HostSlot:
        """The next `slot_bytes`, in whole pages. NoSpace, with the numbers, when they are gone."""
        wanted = round_up(slot_bytes, PAGE_BYTES)
        if wanted > self.free_bytes:
            raise NoSpace(
                f"the host arena has {self.free_bytes} of {self._num_bytes} bytes left; a slot of "
                f"{wanted} was wanted. Use fewer or smaller slots, or a larger arena"
            )
        start, stop = self._carved_bytes, self._carved_bytes + wanted
        slot = HostSlot(self._view[start:stop], self._bytes[start:stop])
        self._carved_bytes = stop
        self._slots.append(slot)
        return slot

    def reset(self) -> None:
        """Take all slots back; they must not be used again. Misuse while one is in use."""
        if busy := sum(slot.in_use for slot in self._slots):
            raise Misuse(f"{busy} slots of the arena are still in use; wait for their operations")
        self._slots.clear()
        self._carved_bytes = 0

    def close(self) -> None:
        """Give the memory back. Views that still live keep their addresses, but read as zeros.

        Memory that an operation is still using stays as it is until the process ends.
        """
        unregister(self._pinned)
        if any(slot.in_use for slot in self._slots):
            log.warning("host arena closed while slots are in use; its memory stays mapped")
            _abandoned.append(self._map)
            return
        self._slots.clear()
        if not self._map.closed:
            self._map.madvise(mmap.MADV_DONTNEED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_abandoned: list[mmap.mmap] = []  # memory of calls that never came back


class DeviceSlot:
    """A piece of the device slab."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Use DeviceSlab.carve."""
        self._bytes = tensor

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._bytes.numel()

    def tensor(self, dtype: torch.dtype, num_elements: int, offset_bytes: int = 0) -> torch.Tensor:
        """A 1-D tensor of `num_elements` over the bytes from `offset_bytes` on; no copy."""
        return _typed(self._bytes, dtype, num_elements, offset_bytes)


class DeviceSlab:
    """`slab_bytes` of device memory in one allocation, cut into slots; on cpu a plain buffer."""

    def __init__(self, slab_bytes: int, device: torch.device) -> None:
        self._num_bytes = slab_bytes
        self._carved_bytes = 0
        self._bytes = torch.empty(slab_bytes, dtype=torch.uint8, device=device)

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


def _aligned(memory: mmap.mmap, num_bytes: int) -> tuple[memoryview, torch.Tensor]:
    """The part of the mapping that starts on a huge page, as bytes and as a uint8 tensor."""
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE_BYTES
    return memoryview(memory)[start : start + num_bytes], whole[start : start + num_bytes]
