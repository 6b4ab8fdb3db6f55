"""A lock that dies with its holder: flock on a file that names the holder's pid."""

import fcntl
import os
from pathlib import Path
from typing import Self


class LockHeld(RuntimeError):
    """Another living process holds the lock; `pid` is the one it wrote down, None if unreadable."""

    def __init__(self, path: Path, pid: int | None) -> None:
        self.path = path
        self.pid = pid
        super().__init__(f"{path} is held by process {pid or '(unknown)'}")


class LockFile:
    """Held from construction to `close`, or until the process ends in whatever way.

    Raises LockHeld when another process has it. The file itself stays: to remove it would let two
    holders lock two different files of one name.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise LockHeld(path, read_pid(path)) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Let go of the lock."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_pid(path: Path) -> int | None:
    """The pid written in a lock file; None when there is none."""
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock at this moment; leaves the file as it is."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
