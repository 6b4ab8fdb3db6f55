"""Files of the file system as wholes: hashed, and written so that they are there whole or not."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .filesystem import sync_directory
from .working_file import make_held


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal; OSError where it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def whole_file(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A file that takes the place of `path`, synced, when the block ends well.

    After a crash `path` holds the old content or the new; after an exception the old. `mode` is
    that of the file.
    """
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def replace_file(path: Path, content: bytes) -> None:
    """Write a small file in place of `path`, whole, though others do the same at the same time.

    The last one's stays. It is synced, but the directory is not: after a crash the old content may
    be back. OSError leaves the old one.
    """
    half = path.with_name(f"{path.name}.new")
    descriptor = make_held(half)  # by one at a time; what a killed one has left is written over
    try:
        os.ftruncate(descriptor, 0)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
        half.replace(path)
    except BaseException as error:
        half.unlink(missing_ok=True)
        if isinstance(error, OSError):  # the calls above name no file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        os.close(descriptor)
