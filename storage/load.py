"""Measuring a drive by the road that the store takes: the same file, queue, threads and calls."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from .io_queue import Call, IoQueue, Kind
from .stats import LinkMeter
from .throttle import Throttle
from .volume import Volume

LoadKind = Literal["read", "write", "mixed"]  # mixed: reads and writes in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a load moved, how long it took, and the processor time of the whole process in it."""

    read_bytes: int
    written_bytes: int
    seconds: float
    cpu_seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Reads and writes together."""
        return (self.read_bytes + self.written_bytes) / self.seconds


def run_load(
    volume: Volume,
    buffers: Sequence[memoryview],
    kind: LoadKind,
    *,
    region: tuple[int, int],
    num_bytes: int,
    limit_seconds: float = float("inf"),
    throttle: Throttle | None = None,
) -> LoadResult:
    """Move `num_bytes`, or as many as there is time for, a buffer a call, one after another.

    Every buffer is one call in flight, so their number is the depth. Calls run through the bytes
    `region` of the file again and again. Raises what the volume raises.
    """
    meters = {link: LinkMeter() for link in ("nvme_read", "nvme_write")}
    queue = IoQueue("load", num_threads=len(buffers), meters=meters, throttle=throttle)
    load = _Load(volume, queue, kind, region=region, num_bytes=num_bytes)
    cpu, start = time.process_time(), time.monotonic()
    try:
        load.run(buffers, start + limit_seconds)
        seconds, cpu_seconds = time.monotonic() - start, time.process_time() - cpu
    finally:
        queue.close(60)
    return LoadResult(
        read_bytes=meters["nvme_read"].snapshot().payload_bytes,
        written_bytes=meters["nvme_write"].snapshot().payload_bytes,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
    )


class _Load:
    """Keeps every buffer busy: the end of a call starts the next one."""

    def __init__(
        self,
        volume: Volume,
        queue: IoQueue,
        kind: LoadKind,
        *,
        region: tuple[int, int],
        num_bytes: int,
    ) -> None:
        self._volume = volume
        self._queue = queue
        self._kind = kind
        self._start, self._stop = region
        self._left = num_bytes
        self._position = self._start
        self._num_calls = 0
        self._under_way = 0
        self._deadline = 0.0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def run(self, buffers: Sequence[memoryview], deadline: float) -> None:
        """Move everything and wait for the last call; raises the first error."""
        self._deadline = deadline
        for buffer in buffers:
            self._next(buffer)
        with self._changed:
            while self._under_way:
                self._changed.wait()
        if self._error is not None:
            raise self._error

    def _next(self, buffer: memoryview) -> None:
        size = len(buffer)
        with self._changed:
            if self._error or self._left < size or time.monotonic() >= self._deadline:
                return
            if self._position + size > self._stop:
                self._position = self._start
            offset, self._position = self._position, self._position + size
            self._left -= size
            kind = self._kind_of(self._num_calls)
            self._num_calls += 1
            self._under_way += 1
        move = self._volume.read if kind == "read" else self._volume.write
        call = Call(
            kind=kind,
            work=partial(move, offset, buffer),
            ended=partial(self._ended, buffer),
            num_bytes=size,
            payload_bytes=size,
        )
        self._queue.submit(call)

    def _kind_of(self, index: int) -> Kind:
        if self._kind == "mixed":
            return "write" if index % 2 else "read"
        return self._kind

    def _ended(self, buffer: memoryview, error: BaseException | None) -> None:
        if error is None:
            self._next(buffer)
        with self._changed:
            self._error = self._error or error
            self._under_way -= 1
            self._changed.notify_all()
