"""One writer, or any number of readers, per store: flock, which dies with its process."""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from .errors import Locked

LOCK_NAME = "lock"


class StoreLock:
    """The locks of a store's directories, held until close."""

    def __init__(self, directories: Sequence[Path], *, shared: bool) -> None:
        """Take all of them or none. Raises Locked, naming the process that writes there."""
        self._descriptors: list[int] = []
        try:
            for directory in directories:
                self._descriptors.append(_lock(directory / LOCK_NAME, shared))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the locks back."""
        while self._descriptors:
            os.close(self._descriptors.pop())


def _lock(path: Path, shared: bool) -> int:
    while True:
        descriptor = os.open(path, os.O_RDONLY if shared else os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace") or "unknown (a reader)"
            os.close(descriptor)
            ours = holder == str(os.getpid())
            advice = "this one; try again in a moment" if ours else "wait until it ends, or end it"
            raise Locked(f"store {path.parent} is in use by process {holder}; {advice}") from error
        if _is_still_there(path, descriptor):
            break
        os.close(descriptor)  # the store was removed between open and flock
    if not shared:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _is_still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
