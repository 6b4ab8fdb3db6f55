"""Drives that can be looked into: in memory, failing on command, losing power, or slow.

Each `...Disk` holds files for as long as the test lives; its `open` is handed to TensorStore as
`open_volume`. A disk outlives the stores opened on it, as a drive outlives processes.
"""

import errno
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from headrace.storage import PAGE_BYTES, IoFailed, VolumeStatus
from headrace.storage.volume import Volume  # the protocol is the room's own, not at its door

SECTOR_BYTES = 512


class MemoryDisk:
    """Files in memory, each as long as the real one that was reserved at its path."""

    def __init__(self) -> None:
        self.files: dict[Path, bytearray] = {}

    def open(self, status: VolumeStatus, path: Path, read_only: bool) -> "MemoryVolume":
        """Open a file, zeroed when it is new."""
        content = self.files.setdefault(path, bytearray(path.stat().st_size))
        return MemoryVolume(path, content)


class MemoryVolume:
    """One file of a MemoryDisk."""

    def __init__(self, path: Path, content: bytearray) -> None:
        self.path = path
        self.content = content

    def read(self, offset: int, target: memoryview) -> None:
        target[:] = self.content[offset : offset + len(target)]

    def write(self, offset: int, source: memoryview, *, durable: bool = False) -> None:
        assert offset + len(source) <= len(self.content), "write behind the end of the file"
        self.content[offset : offset + len(source)] = source

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


Fault = Literal["eio", "enospc", "short", "wrong", "delay", "hang"]


class FaultyDisk(MemoryDisk):
    """Operation `faults` keys (counted from 0 over all files) go wrong in the way named there.

    "wrong" moves damaged bytes and says nothing; "delay" takes 50 ms; "hang" stays inside until
    `released` is set.
    """

    def __init__(self, faults: Mapping[int, Fault] | None = None) -> None:
        super().__init__()
        self.faults = dict(faults or {})
        self.num_operations = 0
        self.released = threading.Event()
        self._lock = threading.Lock()

    def open(self, status: VolumeStatus, path: Path, read_only: bool) -> "FaultyVolume":
        memory = super().open(status, path, read_only)
        return FaultyVolume(path, memory.content, self)

    def next_fault(self) -> Fault | None:
        """What goes wrong with the operation that begins now."""
        with self._lock:
            self.num_operations += 1
            return self.faults.get(self.num_operations - 1)


class FaultyVolume(MemoryVolume):
    """One file of a FaultyDisk."""

    def __init__(self, path: Path, content: bytearray, disk: FaultyDisk) -> None:
        super().__init__(path, content)
        self._disk = disk

    def read(self, offset: int, target: memoryview) -> None:
        fault = self._meet("read", offset, len(target))
        super().read(offset, target)
        if fault == "wrong":
            target[0] ^= 0xFF

    def write(self, offset: int, source: memoryview, *, durable: bool = False) -> None:
        fault = self._meet("write", offset, len(source))
        super().write(offset, source, durable=durable)
        if fault == "wrong":
            self.content[offset] ^= 0xFF

    def sync(self) -> None:
        self._meet("sync", 0, 0)

    def _meet(self, operation: str, offset: int, wanted: int) -> Fault | None:
        fault = self._disk.next_fault()
        if fault == "hang":
            self._disk.released.wait(30)
        elif fault == "delay":
            time.sleep(0.05)
        elif fault == "short":
            self._fail(operation, offset, wanted, wanted // 2, "the file ends here")
        elif fault in ("eio", "enospc"):
            code = errno.EIO if fault == "eio" else errno.ENOSPC
            self._fail(operation, offset, wanted, 0, os.strerror(code))
        return fault

    def _fail(self, operation: str, offset: int, wanted: int, got: int, cause: str) -> NoReturn:
        raise IoFailed(
            volume=str(self.path.parent),
            operation=operation,
            offset=offset,
            wanted=wanted,
            got=got,
            cause=cause,
        )


@dataclass(frozen=True, slots=True)
class Logged:
    """One thing that happened to a CrashDisk: a write, a sync, or a mark that the test made."""

    kind: Literal["write", "durable", "sync", "mark"]
    path: Path
    offset: int = 0
    data: bytes = b""
    mark: object = None


Loss = Literal["dropped", "torn", "kept"]


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The drives as found after a power loss, and the last mark made before it."""

    files: dict[Path, bytearray]
    mark: object
    label: str


class CrashDisk(MemoryDisk):
    """Remembers every write and sync in order, so that power can be lost at each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Logged] = []
        self._lock = threading.Lock()

    def open(self, status: VolumeStatus, path: Path, read_only: bool) -> "CrashVolume":
        memory = super().open(status, path, read_only)
        return CrashVolume(path, memory.content, self)

    def append(self, entry: Logged, act: Callable[[], None] = lambda: None) -> None:
        """Note and do one thing; the order of the log is the order of the bytes."""
        with self._lock:
            self.log.append(entry)
            act()

    def mark(self, mark: object) -> None:
        """Note that the test has come this far."""
        self.append(Logged("mark", Path(), mark=mark))

    def crash_points(self, losses: tuple[Loss, ...], seed: int = 0) -> Iterator[CrashPoint]:
        """The drives after a power loss before and within every entry of the log.

        What was not synced is dropped, kept, or torn: each of its pages survives or not. A durable
        write that is cut is torn at sectors.
        """
        chance = random.Random(seed)
        durable = {path: bytearray(len(content)) for path, content in self.files.items()}
        unsynced: list[Logged] = []
        mark: object = None
        for i, entry in enumerate(self.log):
            if entry.kind == "mark":
                mark = entry.mark
                continue
            under_way = [*unsynced, entry] if entry.data else unsynced
            for loss in losses:
                files = {path: bytearray(content) for path, content in durable.items()}
                for write in under_way:
                    _survive(files[write.path], write, loss, chance)
                yield CrashPoint(files, mark, f"{loss} within {entry.kind} {i}")
            if entry.kind == "durable":
                _survive(durable[entry.path], entry, "kept", chance)
            elif entry.kind == "write":
                unsynced.append(entry)
            else:
                for write in unsynced:
                    if write.path == entry.path:
                        _survive(durable[write.path], write, "kept", chance)
                unsynced = [write for write in unsynced if write.path != entry.path]
        yield CrashPoint(durable, mark, "after the end")


class CrashVolume(MemoryVolume):
    """One file of a CrashDisk."""

    def __init__(self, path: Path, content: bytearray, disk: CrashDisk) -> None:
        super().__init__(path, content)
        self._disk = disk

    def write(self, offset: int, source: memoryview, *, durable: bool = False) -> None:
        entry = Logged("durable" if durable else "write", self.path, offset, bytes(source))
        plain = super().write
        self._disk.append(entry, lambda: plain(offset, source))

    def sync(self) -> None:
        self._disk.append(Logged("sync", self.path))


class SlowVolume:
    """Another volume, each of whose calls takes `seconds` longer."""

    def __init__(self, volume: Volume, seconds: float) -> None:
        self._volume = volume
        self._seconds = seconds

    def read(self, offset: int, target: memoryview) -> None:
        time.sleep(self._seconds)
        self._volume.read(offset, target)

    def write(self, offset: int, source: memoryview, *, durable: bool = False) -> None:
        time.sleep(self._seconds)
        self._volume.write(offset, source, durable=durable)

    def sync(self) -> None:
        self._volume.sync()

    def close(self) -> None:
        self._volume.close()


def _survive(content: bytearray, write: Logged, loss: Loss, chance: random.Random) -> None:
    """Put into `content` what a power loss leaves of a write."""
    if loss == "dropped":
        return
    step = SECTOR_BYTES if write.kind == "durable" else PAGE_BYTES
    for start in range(0, len(write.data), step):
        if loss == "kept" or chance.random() < 0.5:
            part = write.data[start : start + step]
            content[write.offset + start : write.offset + start + len(part)] = part
