"""Boundary activations that wait on NVMe: written behind forward, read ahead of backward.

Each passes a buffer on the device and one in pinned host memory, both ways. Copies are ordered by
events; a thread writes what has come down and reads what backward will want, another begins the
copies up. The thread that computes never waits for the device here: only for the drive, when it is
a whole ring behind or has not brought what is wanted, as for a record.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue

import torch
from torch import Tensor

from headrace.storage import PAGE_BYTES, Fence, HostSlot, IoFuture, Scratch, Transfer, round_up

from .homes import Order
from .parked import Item, fetched_after
from .pipeline import Stopped


@dataclass(slots=True, eq=False)
class _Buffer:
    """Room on the device for one activation, and what must be over before it is used again."""

    room: Tensor
    free: Fence = field(default_factory=Fence)


def _at_once() -> None:
    """Nothing to wait for."""


@dataclass(slots=True, eq=False)
class _Pinned:
    """A buffer in host memory; `until` waits for its last use, and raises what ended that early."""

    slot: HostSlot
    until: Callable[[], None] = _at_once


@dataclass(frozen=True, slots=True, eq=False)
class _Lifted:
    """An activation on its way up to the device, there when `ready` says so."""

    buffer: _Buffer
    ready: Fence


class ScratchRoad:
    """The way between the device and a store's scratch: its buffers, and threads that `close` ends.

    Half of the rooms on the device serve the way down, half the way up. What is kept first is
    fetched after all else has been kept; a buffer that was fetched last is the caller's until the
    next fetch.
    """

    def __init__(
        self,
        scratch: Scratch,
        *,
        transfer: Transfer,
        rooms: Sequence[Tensor],
        ring: Sequence[HostSlot],
    ) -> None:
        """`rooms` are flat tensors on the device, each as long as the largest activation; the slots
        of `ring` hold as many bytes."""
        self._scratch = scratch
        self._transfer = transfer
        half = len(rooms) // 2
        self._down = deque(_Buffer(room) for room in rooms[:half])
        self._up: SimpleQueue[_Buffer | None] = SimpleQueue()
        for room in rooms[half:]:
            self._up.put(_Buffer(room))
        self._in_use: _Buffer | None = None
        self._ring = deque(_Pinned(slot) for slot in ring)
        self.depth = len(ring)  # so many are read ahead
        self._drive = ThreadPoolExecutor(1, "scratch")
        self._lifter = ThreadPoolExecutor(1, "scratch-up")

    def send(self, hidden: Tensor, offset: int) -> "Future[IoFuture]":
        """Begin to write an activation at a byte of the scratch, behind what the device has been
        given to do; the future's own future ends with the write."""
        pinned = self._next_pinned()
        pinned.until()
        buffer = self._down[0]
        self._down.rotate(-1)
        buffer.free.order()
        room = buffer.room[: hidden.numel()]
        room.copy_(hidden.reshape(-1))
        place = pinned.slot.tensor(room.dtype, room.numel())
        landed = buffer.free = self._transfer.to_host(
            room, place, after=self._transfer.fence(), urgent=True
        )
        written = self._drive.submit(self._write, offset, pinned.slot, hidden.nbytes, landed)
        pinned.until = lambda: written.result().result()
        return written

    def call(
        self, offset: int, num_elements: int, dtype: torch.dtype, written: "Future[IoFuture]"
    ) -> "Future[_Lifted]":
        """Begin to read an activation back; `written` is what its `send` returned."""
        pinned = self._next_pinned()
        before, slot = pinned.until, pinned.slot
        size = num_elements * dtype.itemsize
        read = self._drive.submit(self._read, offset, slot, size, (before, written))
        lifted = self._lifter.submit(self._lift, read, slot, num_elements, dtype)
        pinned.until = lambda: lifted.result().ready.wait()
        return lifted

    def take(self, lifted: "Future[_Lifted]") -> Tensor:
        """The room that a called activation has come to, the caller's until the next is taken."""
        if self._in_use is not None:
            self._in_use.free = self._transfer.fence()
            self._up.put(self._in_use)
            self._in_use = None
        found = lifted.result()
        self._in_use = found.buffer
        found.ready.order()
        return found.buffer.room

    def close(self) -> None:
        """End the threads and let go of the buffers; what is under way is dropped."""
        self._up.put(None)
        for executor in (self._drive, self._lifter):
            executor.shutdown(wait=False, cancel_futures=True)
        for executor in (self._drive, self._lifter):
            executor.shutdown(wait=True)
        self._down.clear()
        self._ring.clear()
        self._up = SimpleQueue()
        self._in_use = None

    def _next_pinned(self) -> _Pinned:
        self._ring.rotate(-1)
        return self._ring[-1]

    def _write(self, offset: int, slot: HostSlot, num_bytes: int, landed: Fence) -> IoFuture:
        landed.wait()
        return self._scratch.write(offset, slot, num_bytes)

    def _read(
        self,
        offset: int,
        slot: HostSlot,
        num_bytes: int,
        after: tuple[Callable[[], None], "Future[IoFuture]"],
    ) -> IoFuture:
        buffer_is_free, written = after
        buffer_is_free()
        written.result().result()
        return self._scratch.read(offset, slot, num_bytes)

    def _lift(
        self, read: "Future[IoFuture]", slot: HostSlot, num_elements: int, dtype: torch.dtype
    ) -> _Lifted:
        read.result().result()
        buffer = self._up.get()
        if buffer is None:
            self._up.put(None)  # for those behind
            raise Stopped("the way to scratch has ended")
        room = buffer.room[:num_elements]
        source = slot.tensor(dtype, num_elements)
        ready = self._transfer.to_device(source, room, after=buffer.free, urgent=True)
        return _Lifted(buffer, ready)


class ScratchActivations:
    """Boundary activations of one step that wait on NVMe, each in whole pages at a fixed place."""

    def __init__(
        self,
        road: ScratchRoad,
        *,
        dtype: torch.dtype,
        layers: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        order: Order = "layers",
    ) -> None:
        """For these layers; `shapes` are the hidden shapes (rows, tokens, hidden) of the step's
        microbatches."""
        self._road = road
        self._dtype = dtype
        self._shapes = [torch.Size(shape) for shape in shapes]
        sizes = [round_up(one.numel() * dtype.itemsize, PAGE_BYTES) for one in self._shapes]
        self._starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self._bases = {layer: i * sum(sizes) for i, layer in enumerate(layers)}
        self._turns = fetched_after(layers, len(shapes), order)
        self._written: dict[Item, Future[IoFuture]] = {}
        self._wanted: deque[Item] = deque()  # in the order of backward, not called yet
        self._coming: dict[Item, Future[_Lifted]] = {}

    def keep(self, layer: int, microbatch: int, hidden: Tensor) -> None:
        """Send the input of `layer`, shape (rows, tokens, hidden), to NVMe."""
        item = (layer, microbatch)
        self._written[item] = self._road.send(hidden, self._offset(item))
        self._wanted.extend(self._turns.get(item, ()))
        for _ in range(self._road.depth if self._wanted else 0):
            self._call_next()

    def fetch(self, layer: int, microbatch: int) -> Tensor:
        """Give the input back, on the device until the next one is fetched."""
        room = self._road.take(self._coming.pop((layer, microbatch)))
        self._call_next()
        shape = self._shapes[microbatch]
        return room[: shape.numel()].view(shape)

    def _call_next(self) -> None:
        """Have the next one read that backward will want, if any is left."""
        if not self._wanted:
            return
        item = self._wanted.popleft()
        self._coming[item] = self._road.call(
            self._offset(item),
            self._shapes[item[1]].numel(),
            self._dtype,
            self._written.pop(item),
        )

    def _offset(self, item: Item) -> int:
        layer, microbatch = item
        return self._bases[layer] + self._starts[microbatch]
