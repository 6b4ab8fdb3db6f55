"""What the kernel says of a directory: file system, direct I/O, free space; and reserving files."""

import ctypes
import errno
import os
from dataclasses import dataclass
from pathlib import Path

from .errors import IoFailed, NoSpace, StoreError

_AT_FDCWD = -100
_STATX_DIOALIGN = 0x2000
_STATX_BYTES = 256
_DIOALIGN_OFFSET = 0x98  # u32 memory alignment, then u32 offset alignment
_ZERO_FILL_BYTES = 16 << 20
_NAMES = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlay",
    0xF2F52010: "f2fs",
    0x2FC12FC1: "zfs",
    0x65735546: "fuse",
    0x6969: "nfs",
    0x01021997: "9p",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x00C36400: "ceph",
}
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)  # a full file system, or a spent quota
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectAlignment:
    """What direct I/O asks for, in bytes: of addresses in memory, of offsets and sizes in the file.

    Both are 0 when the file system has no direct I/O; None in place of the record when the kernel
    cannot say (before Linux 6.1).
    """

    memory: int
    offset: int


def filesystem_name(path: Path) -> str:
    """Name of the file system that holds `path`, or its magic number in hexadecimal."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statfs(os.fsencode(path), buffer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    magic = ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF
    return _NAMES.get(magic, hex(magic))


def direct_alignment(path: Path) -> DirectAlignment | None:
    """Ask statx what direct I/O on the file `path` needs; None when the kernel does not know."""
    if not hasattr(_libc, "statx"):
        return None
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    if _libc.statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_DIOALIGN, buffer) != 0:
        return None
    if not ctypes.c_uint32.from_buffer(buffer).value & _STATX_DIOALIGN:
        return None
    memory = ctypes.c_uint32.from_buffer(buffer, _DIOALIGN_OFFSET).value
    offset = ctypes.c_uint32.from_buffer(buffer, _DIOALIGN_OFFSET + 4).value
    return DirectAlignment(memory=memory, offset=offset)


def free_bytes(path: Path) -> int:
    """Bytes an unprivileged process may still write on the file system of `path`. StoreError."""
    stats = _statvfs(path)
    return stats.f_bavail * stats.f_frsize


def total_bytes(path: Path) -> int:
    """Size of the file system of `path`. StoreError."""
    stats = _statvfs(path)
    return stats.f_blocks * stats.f_frsize


def _statvfs(path: Path) -> os.statvfs_result:
    try:
        return os.statvfs(path)
    except FileNotFoundError as error:
        raise StoreError(f"{path} is not there (any more): is its drive mounted?") from error


def reserve_file(path: Path, num_bytes: int, *, exists: bool = False) -> None:
    """Create `path` with room for `num_bytes` really reserved; on any failure it is removed.

    With `exists` it is there already, empty. Raises NoSpace when the file system or a quota is
    full, else IoFailed.
    """
    new = 0 if exists else os.O_CREAT | os.O_EXCL
    descriptor = os.open(path, os.O_RDWR | new | os.O_CLOEXEC, 0o644)
    try:
        _reserve(descriptor, num_bytes)
        os.fsync(descriptor)
    except OSError as error:
        os.unlink(path)  # a failing fallocate keeps what it got
        if error.errno in NO_ROOM:
            raise NoSpace(
                f"reserving {num_bytes} bytes for {path} failed: {error.strerror}; "
                f"{free_bytes(path.parent)} bytes are free now. Free space or use another volume"
            ) from error
        raise IoFailed(
            volume=str(path.parent),
            operation="reserve",
            offset=0,
            wanted=num_bytes,
            got=0,
            cause=str(error),
        ) from error
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, num_bytes: int) -> None:
    length = ctypes.c_int64(num_bytes)
    while _libc.fallocate64(descriptor, 0, ctypes.c_int64(0), length) != 0:
        code = ctypes.get_errno()
        if code == errno.EOPNOTSUPP:
            return _fill_with_zeros(descriptor, num_bytes)
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code))


def _fill_with_zeros(descriptor: int, num_bytes: int) -> None:
    """Reserve by writing, where the file system has no fallocate: space must not fail later."""
    zeros = memoryview(bytes(min(_ZERO_FILL_BYTES, num_bytes)))
    position = 0
    while position < num_bytes:
        position += os.pwrite(descriptor, zeros[: num_bytes - position], position)
