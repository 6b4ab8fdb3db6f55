"""A file on a volume for as long as a measurement takes, gone however the process ends.

Its name must stay while it is used, since other programs (fio, cuFile) open it by that. A process
that is killed leaves it behind, gibibytes of it, and in a container the next process may have the
same number: so each file is held by a flock, which dies with its process, and whoever makes one
removes those that nobody holds.
"""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .filesystem import reserve_file


@contextmanager
def working_file(folder: Path, purpose: str, num_bytes: int) -> Iterator[Path]:
    """A file of `folder` with room for `num_bytes` reserved, removed at the end of the block.

    `purpose` is a word for its name. Raises NoSpace, IoFailed, OSError.
    """
    remove_leftovers(folder, purpose)
    path = folder / f"{_prefix(purpose)}{os.getpid()}-{secrets.token_hex(4)}"
    descriptor = make_held(path)
    try:
        reserve_file(path, num_bytes, exists=True)
        yield path
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def remove_leftovers(folder: Path, purpose: str) -> None:
    """Remove what killed processes have left in a folder; what is in use, or no file, stays."""
    for path in folder.glob(f"{_prefix(purpose)}*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)


def _prefix(purpose: str) -> str:
    return f".headrace-{purpose}-"


def make_held(path: Path) -> int:
    """Make the file and hold it; again, when another process took it for a leftover in between."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
