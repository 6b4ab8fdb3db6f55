"""One preallocated file on one drive: direct I/O where it is to be had, buffered elsewhere."""

import errno
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, cast

from .config import Backend, VolumeConfig
from .errors import IoFailed, StoreError
from .filesystem import NO_ROOM, direct_alignment, filesystem_name, free_bytes, total_bytes
from .layout import MIB
from .record import PAGE_BYTES, round_up

_RWF_DONTCACHE = 0x80
_DIRTY_LIMIT_BYTES = 64 * MIB
_DIRECT_FILESYSTEMS = ("ext4", "xfs", "f2fs")
_PROBE_BYTES = MIB
Road = Literal["direct", "buffered", "gds-nvfs", "gds-p2pdma"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeStatus:
    """Which road a volume's bytes take, and why.

    `written_bytes` counts the life of the store, `share` is the part of its stripes, and
    `bytes_per_second` what the volume was calibrated at (reads and writes together), if it was.
    """

    path: str
    requested: Backend
    active: Road
    why: str
    filesystem: str
    memory_alignment: int
    offset_alignment: int
    free_bytes: int
    total_bytes: int
    written_bytes: int = 0
    share: float = 1.0
    bytes_per_second: float | None = None


class Volume(Protocol):
    """Bytes of one file. Every call moves all of its bytes or raises IoFailed; any thread may call.

    Offsets, sizes and addresses are multiples of 4 KiB.
    """

    def read(self, offset: int, target: memoryview) -> None:
        """Fill `target` from byte `offset` on."""

    def write(self, offset: int, source: memoryview, *, durable: bool = False) -> None:
        """Write all of `source` at byte `offset`; when `durable`, return after it is on the drive.

        Durable covers this write alone, not the ones before it.
        """

    def sync(self) -> None:
        """Return when everything written before is on the drive."""

    def close(self) -> None:
        """Let the file go."""


OpenVolume = Callable[[VolumeStatus, Path, bool], Volume]  # what the probe found, file, read_only


def page_buffer(num_bytes: int) -> mmap.mmap:
    """Zeroed, page-aligned memory of at least `num_bytes`, fit for direct I/O."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return mmap.mmap(-1, max(PAGE_BYTES, round_up(num_bytes, PAGE_BYTES)), flags=flags)


class FileVolume:
    """A volume over a real file; direct or buffered."""

    def __init__(self, path: Path, *, direct: bool, read_only: bool = False) -> None:
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC
        self._path = path
        self._descriptor = os.open(path, flags | (os.O_DIRECT if direct else 0))
        self._direct = direct
        self._call_flags = 0 if direct else _RWF_DONTCACHE
        self._dirty_bytes = 0
        self._lock = threading.Lock()

    def read(self, offset: int, target: memoryview) -> None:
        """See Volume."""
        self._move("read", os.preadv, offset, target, 0)
        if not self._direct:
            os.posix_fadvise(self._descriptor, offset, len(target), os.POSIX_FADV_DONTNEED)

    def write(self, offset: int, source: memoryview, *, durable: bool = False) -> None:
        """See Volume."""
        self._move("write", os.pwritev, offset, source, os.RWF_DSYNC if durable else 0)
        if not self._direct:
            self._bound_page_cache(len(source))

    def sync(self) -> None:
        """See Volume."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._failed("sync", 0, 0, 0, str(error)) from error

    def close(self) -> None:
        """See Volume."""
        os.close(self._descriptor)

    def _move(
        self,
        operation: str,
        call: Callable[[int, list[memoryview], int, int], int],
        offset: int,
        view: memoryview,
        flags: int,
    ) -> None:
        """Call until all bytes are through; a short return is legal, no progress is not."""
        done = 0
        while done < len(view):
            try:
                got = call(self._descriptor, [view[done:]], offset + done, flags | self._call_flags)
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP and self._call_flags:
                    self._call_flags = 0  # no RWF_DONTCACHE here: fadvise behind does it alone
                    continue
                raise self._failed(operation, offset, len(view), done, str(error)) from error
            if got == 0:
                raise self._failed(operation, offset, len(view), done, "the file ends here")
            done += got

    def _bound_page_cache(self, num_bytes: int) -> None:
        """Buffered writes only: flush and drop now and then, so that the page cache stays small."""
        with self._lock:
            self._dirty_bytes += num_bytes
            if self._dirty_bytes < _DIRTY_LIMIT_BYTES:
                return
            self._dirty_bytes = 0
        self.sync()
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def _failed(self, operation: str, offset: int, wanted: int, got: int, cause: str) -> IoFailed:
        return IoFailed(
            volume=str(self._path.parent),
            operation=operation,
            offset=offset,
            wanted=wanted,
            got=got,
            cause=cause,
        )


def open_file_volume(status: VolumeStatus, path: Path, read_only: bool) -> Volume:
    """Open a store's file by the road that the probe found."""
    if status.active.startswith("gds"):
        from .gds import open_gds_volume  # kvikio and torch, where they are really used

        return open_gds_volume(path, read_only=read_only)
    return FileVolume(path, direct=status.active == "direct", read_only=read_only)


def probe_volume(config: VolumeConfig, *, writable: bool = True) -> VolumeStatus:
    """Find out how a volume can be used, by moving bytes through a file of its own in there.

    Without `writable`, or where the volume is full to the last page, decide by the file system
    alone: a store that is there has its space. Raises StoreError when the path is
    missing, no directory, not writable, or when direct I/O is asked for and not to be had.
    """
    path = config.path
    if not path.is_dir():
        what = "is not a directory" if path.exists() else "does not exist"
        raise StoreError(f"volume {path} {what}; create it, or correct the path")
    status = VolumeStatus(
        path=str(path),
        requested=config.backend,
        active="buffered",
        why="asked for",
        filesystem=filesystem_name(path),
        memory_alignment=1,
        offset_alignment=1,
        free_bytes=free_bytes(path),
        total_bytes=total_bytes(path),
    )
    if not writable:
        return _judge(config, status, _refusal_by_name(status.filesystem))
    probe = path / f".headrace-probe-{os.getpid()}-{threading.get_ident()}"
    try:
        probe.write_bytes(bytes(PAGE_BYTES))
    except OSError as error:
        with suppress(OSError):  # a read-only file system refuses that as well
            probe.unlink()
        if error.errno in NO_ROOM:
            return _judge(config, status, _refusal_by_name(status.filesystem))
        raise StoreError(
            f"volume {path} cannot be written: {error.strerror}; "
            "change its owner or mode, or use another volume"
        ) from error
    try:
        status = _judge(config, status, _direct_refusal(probe, status.filesystem), probe)
    finally:
        probe.unlink()
    return _with_gds(status) if config.backend == "gds" else status


def _judge(
    config: VolumeConfig, status: VolumeStatus, refusal: str, probe: Path | None = None
) -> VolumeStatus:
    if config.backend == "buffered":
        return status
    if refusal and config.backend == "direct":
        raise StoreError(
            f"volume {config.path} has no direct I/O: {refusal}; use backend 'auto' or 'buffered', "
            "or a directory on ext4 or xfs"
        )
    if refusal:
        return replace(status, why=refusal)
    alignment = direct_alignment(probe) if probe else None
    return replace(
        status,
        active="direct",
        why="bytes written with O_DIRECT came back" if probe else f"{status.filesystem} has it",
        memory_alignment=alignment.memory if alignment else PAGE_BYTES,
        offset_alignment=alignment.offset if alignment else PAGE_BYTES,
    )


def _with_gds(status: VolumeStatus) -> VolumeStatus:
    """GDS if a child process proves it now; else the road found before, with the reason."""
    from .gds_probe import probe_gds

    found = probe_gds(Path(status.path))
    if not found.active:
        return replace(status, why=f"no GDS: {found.why}. {status.active}: {status.why}")
    return replace(status, active=cast(Road, found.active), why=found.why)


def _refusal_by_name(filesystem: str) -> str:
    if filesystem in _DIRECT_FILESYSTEMS:
        return ""
    return f"{filesystem} is not known to bypass the page cache"


def _direct_refusal(probe: Path, filesystem: str) -> str:
    """Why direct I/O is not to be used on this file; empty when bytes really moved by it."""
    if refusal := _refusal_by_name(filesystem):
        return refusal
    alignment = direct_alignment(probe)
    if alignment is not None and not 0 < max(alignment.memory, alignment.offset) <= PAGE_BYTES:
        return f"statx asks for an alignment of {alignment.memory}/{alignment.offset} bytes"
    return _try_direct(probe)


def _try_direct(probe: Path) -> str:
    source, target = page_buffer(_PROBE_BYTES), page_buffer(_PROBE_BYTES)
    source[:] = os.urandom(PAGE_BYTES) * (_PROBE_BYTES // PAGE_BYTES)
    try:
        volume = FileVolume(probe, direct=True)
    except OSError as error:
        return f"opening with O_DIRECT failed: {error.strerror}"
    try:
        volume.write(0, memoryview(source))
        volume.sync()
        volume.read(0, memoryview(target))
    except IoFailed as error:
        return error.cause
    finally:
        volume.close()
    return "" if source[:] == target[:] else "bytes written with O_DIRECT came back different"
