"""Copies between host and device: on CUDA each direction in a lane of its own.

The only home of CUDA streams and events. On cpu a copy is done when the call returns, and is
counted and timed all the same.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch

from .errors import Misuse
from .stats import LinkMeter, LinkStats

_DIRECTIONS = ("h2d", "d2h")
# Each direction has a second lane, for what is wanted before all that has been read ahead.
_LANES = tuple((one, urgent) for one in _DIRECTIONS for urgent in (False, True))
# Of copies that urgent ones may overtake: a millisecond each, and of no copy so many that their
# commands fill a stream's queue.
_PIECE_BYTES, _MOST_PIECES = 64 * 2**20, 32
_CLOCK_LIFE = 10.0  # seconds
_cuda: Any = torch.cuda  # partly without types


class Fence:
    """A point in the work given to the device. Without an event it has been reached."""

    def __init__(self, event: Any = None, *, meter: LinkMeter | None = None) -> None:
        """Use Transfer's methods."""
        self._event = event
        self._meter = meter

    def done(self) -> bool:
        """True when the work before this point is finished."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """The calling thread waits; a failed copy or kernel raises torch's error here."""
        if self._event is None:
            return
        start = time.monotonic()
        self._event.synchronize()
        if self._meter is not None:
            self._meter.waited(time.monotonic() - start)

    def order(self) -> None:
        """What the current compute stream is given from now on starts after this point."""
        if self._event is not None:
            self._event.wait(torch.cuda.current_stream())

    def order_before(self, stream: Any) -> None:
        """The same for another stream."""
        if self._event is not None:
            self._event.wait(stream)


class Mark:
    """A moment in the work given to the device, to measure how long that work takes."""

    def __init__(self, event: Any = None) -> None:
        """Use Transfer.mark."""
        self._event = event
        self._moment = time.perf_counter()

    def seconds_until(self, later: "Mark") -> float:
        """Seconds from this moment to `later`; waits until the device has reached it."""
        if self._event is None:
            return later._moment - self._moment
        later._event.synchronize()
        return float(self._event.elapsed_time(later._event)) / 1000


@dataclass(frozen=True, slots=True)
class _Clock:
    """When an event of the device was, on the monotonic clock."""

    event: Any
    moment: float


class _Lane:
    """Copies of one direction, one after the other.

    Where urgent ones shall get in between, large copies are cut into pieces that take turns on two
    streams, each waiting for the one before. A copy engine turns to another stream only where the
    one in hand has to wait: it does not between the pieces of one stream. On an H200 (2026-12-01) a
    copy of 32 MiB took 28 to 33 ms when it was asked for 6 ms after 2 GiB in one stream, whole or
    in pieces of 8 to 64 MiB, and 0.8 to 1.4 ms when pieces of 16 or 32 MiB were on two; the 2 GiB
    took as long either way.
    """

    def __init__(self, device: torch.device, *, in_pieces: bool) -> None:
        self._streams = deque(_cuda.Stream(device=device) for _ in range(2 if in_pieces else 1))
        self._last: Any = None
        self._lock = threading.Lock()

    def copy(
        self, source: torch.Tensor, target: torch.Tensor, after: Sequence[Fence]
    ) -> tuple[Any, Any]:
        """Give the device the copy, once `after` is reached; events of its beginning and end."""
        begun, ended = (_cuda.Event(enable_timing=True) for _ in range(2))
        source = source.view(target.shape)
        parts = pieces_of(source, target) if len(self._streams) > 1 else [(source, target)]
        with self._lock:
            stream = self._turn(after)
            begun.record(stream)
            for i, (piece, place) in enumerate(parts):
                if i:
                    stream = self._turn()
                with torch.cuda.stream(stream):
                    place.copy_(piece, non_blocking=True)
                if len(self._streams) > 1:
                    self._last = _cuda.Event()
                    self._last.record(stream)
            ended.record(stream)
            for tensor in (source, target):
                if tensor.is_cuda:  # nobody else may have its memory before the copy is through
                    for each in self._streams:
                        tensor.record_stream(each)
        return begun, ended

    def _turn(self, after: Sequence[Fence] = ()) -> Any:
        """The stream of the next piece, which waits for the one before and for `after`."""
        if len(self._streams) > 1:
            self._streams.rotate(-1)
            if self._last is not None:
                self._last.wait(self._streams[0])
        for fence in after:
            fence.order_before(self._streams[0])
        return self._streams[0]

    def synchronize(self) -> None:
        """Wait for all copies so far."""
        for stream in self._streams:
            stream.synchronize()


def pieces_of(
    source: torch.Tensor, target: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same parts of both, in order, as views; a small copy is in one piece."""
    size = max(_PIECE_BYTES, -(-source.nbytes // _MOST_PIECES))
    if source.nbytes <= size:
        return [(source, target)]
    length = -(-size // source.element_size())
    parts = (torch.split(tensor.view(-1), length) for tensor in (source, target))
    return list(zip(*parts, strict=True))


class Transfer:
    """The copies to and from one device; a context manager."""

    def __init__(self, device: torch.device) -> None:
        """Open the lanes. `device` is cpu or a CUDA device."""
        self._device = device
        self._meters = {direction: LinkMeter() for direction in _DIRECTIONS}
        self._lanes: dict[tuple[str, bool], _Lane] = {}
        self._timed: list[tuple[str, int, int, _Clock, Any, Any]] = []
        self._lock = threading.Lock()
        self._device_clock: _Clock | None = None
        if device.type == "cuda":
            self._lanes = {
                (one, urgent): _Lane(device, in_pieces=not urgent) for one, urgent in _LANES
            }
            self._idle = _cuda.Stream(device=device)

    def to_device(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        *,
        payload_bytes: int | None = None,
        after: Fence | Sequence[Fence] = (),
        urgent: bool = False,
    ) -> Fence:
        """Copy host `source` to device `target` (contiguous, same dtype and number of elements).

        On CUDA it begins after every fence of `after` and the one returned says when it is
        through; neither tensor may be changed or freed before. `payload_bytes` of it are counted
        as payload, the rest as padding. An `urgent` copy does not queue behind those that are
        not. Raises Misuse when the tensors do not match.
        """
        return self._copy("h2d", source, target, payload_bytes, after, urgent)

    def to_host(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        *,
        payload_bytes: int | None = None,
        after: Fence | Sequence[Fence] = (),
        urgent: bool = False,
    ) -> Fence:
        """Copy device `source` to host `target`; the rest as `to_device`."""
        return self._copy("d2h", source, target, payload_bytes, after, urgent)

    def fence(self) -> Fence:
        """The point up to which the current compute stream has been given work."""
        if not self._lanes:
            return Fence()
        event = _cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return Fence(event)

    def mark(self) -> Mark:
        """The same point, with its time."""
        if not self._lanes:
            return Mark()
        event = _cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return Mark(event)

    def stats(self) -> dict[str, LinkStats]:
        """What was copied since the start, by direction; copies still under way are left out."""
        self._count_finished()
        return {direction: meter.snapshot() for direction, meter in self._meters.items()}

    def close(self) -> None:
        """Wait for the copies under way."""
        for lane in self._lanes.values():
            lane.synchronize()
        self._count_finished()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _copy(
        self,
        direction: str,
        source: torch.Tensor,
        target: torch.Tensor,
        payload_bytes: int | None,
        after: Fence | Sequence[Fence],
        urgent: bool,
    ) -> Fence:
        if source.dtype != target.dtype or source.numel() != target.numel():
            raise Misuse(
                f"a copy needs equal tensors; source has {source.numel()} of {source.dtype}, "
                f"target {target.numel()} of {target.dtype}"
            )
        payload = source.nbytes if payload_bytes is None else payload_bytes
        padding = source.nbytes - payload
        if self._lanes:
            clock = self._clock()  # before the copy: the time between two events is not negative
            fences = (after,) if isinstance(after, Fence) else after
            begun, ended = self._lanes[direction, urgent].copy(source, target, fences)
            with self._lock:
                self._timed.append((direction, payload, padding, clock, begun, ended))
            self._count_finished()
            return Fence(ended, meter=self._meters[direction])
        start = time.monotonic()
        target.copy_(source.view(target.shape))
        self._meters[direction].add(
            payload_bytes=payload,
            padding_bytes=padding,
            busy_seconds=time.monotonic() - start,
            began=start,
        )
        return Fence()

    def _count_finished(self) -> None:
        """Move the copies that are through from the list of events into the counters."""
        with self._lock:
            under_way = []
            for entry in self._timed:
                direction, payload, padding, clock, begun, ended = entry
                if not ended.query():
                    under_way.append(entry)
                    continue
                self._meters[direction].add(
                    payload_bytes=payload,
                    padding_bytes=padding,
                    busy_seconds=begun.elapsed_time(ended) / 1000,
                    began=clock.moment + clock.event.elapsed_time(begun) / 1000,
                )
            self._timed = under_way

    def _clock(self) -> _Clock:
        """A moment of the device on our own clock, not long ago: its floats hold few digits."""
        if self._device_clock is None or time.monotonic() - self._device_clock.moment > _CLOCK_LIFE:
            event = _cuda.Event(enable_timing=True)
            event.record(self._idle)
            event.synchronize()  # at once: nothing else is ever given to that stream
            self._device_clock = _Clock(event, time.monotonic())
        return self._device_clock
