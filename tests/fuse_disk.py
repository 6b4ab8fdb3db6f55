"""A disk that fails on command: one file `disk` in a FUSE file system, kept in a file of its own.

    python fuse_disk.py MOUNT BACKING CONTROL

While the file CONTROL holds "read" or "write", that operation answers EIO. A file system on a loop
device over MOUNT/disk then sees what a dying drive would show it.
"""

import errno
import os
import stat
import sys
from pathlib import Path
from typing import Any

import mfusepy as fuse


class Disk(fuse.Operations):  # type: ignore[misc]
    """One file of fixed size; reads and writes go to the backing file, or fail."""

    use_ns = True

    def __init__(self, backing: Path, control: Path) -> None:
        self._file = os.open(backing, os.O_RDWR)
        self._size = backing.stat().st_size
        self._control = control

    def _check(self, operation: str) -> None:
        if self._control.read_text() == operation:
            raise fuse.FuseOSError(errno.EIO)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """The root directory, and the disk."""
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path != "/disk":
            raise fuse.FuseOSError(errno.ENOENT)
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": self._size}

    def readdir(self, path: str, fh: int) -> list[str]:
        """The one file."""
        return [".", "..", "disk"]

    def open(self, path: str, flags: int) -> int:
        """Any number of times."""
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Bytes of the backing file, or EIO."""
        self._check("read")
        return os.pread(self._file, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """Into the backing file, or EIO."""
        self._check("write")
        return os.pwrite(self._file, data, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        """The backing file outlives this process: nothing to do."""
        return 0


if __name__ == "__main__":
    mount, backing, control = map(Path, sys.argv[1:4])
    fuse.FUSE(Disk(backing, control), str(mount), foreground=True, nothreads=True)
