"""One host arena for staging, cut exactly.

It is private anonymous memory on huge pages, aligned for direct I/O, and registered
with CUDA once when asked. What it costs is what was asked for, plus less than 2 MiB.
"""

import logging
import mmap
from types import TracebackType
from typing import Self

import torch

from .errors import Misuse, NoSpace
from .memory import check_arena
from .pin import register, unregister
from .record import PAGE_BYTES, round_up
from .slot import HostSlot

log = logging.getLogger(__name__)

_HUGE_PAGE_BYTES = 2 << 20
# A fork must not share pages that direct I/O or CUDA write to. Not MADV_DONTFORK: in the child the
# address is then free for others, and the mmap object, once collected there, unmaps theirs.
_MADV_WIPEONFORK = 18


class HostArena:
    """`arena_bytes` of host memory, cut into slots from the front; a context manager."""

    def __init__(self, arena_bytes: int, *, pin: bool = False) -> None:
        """Map the memory; with `pin`, populate it and register it with CUDA.

        Raises Misuse when `pin` is asked for without CUDA, NoSpace when a control group does not
        allow so much, or registering fails.
        """
        if arena_bytes < 0:
            raise ValueError(f"an arena of {arena_bytes} bytes cannot be")
        if pin and not torch.cuda.is_available():
            raise Misuse("a pinned arena needs CUDA; use pin=False")
        check_arena(arena_bytes)
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


def _aligned(memory: mmap.mmap, num_bytes: int) -> tuple[memoryview, torch.Tensor]:
    """The part of the mapping that starts on a huge page, as bytes and as a uint8 tensor."""
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    start = -whole.data_ptr() % _HUGE_PAGE_BYTES
    return memoryview(memory)[start : start + num_bytes], whole[start : start + num_bytes]
