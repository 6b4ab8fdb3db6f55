"""Writing a small file so that it is there whole, on the drive, or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from headrace.storage import sync_directory


@contextmanager
def write_whole(path: Path, *, mode: int = 0o644) -> Iterator[TextIO]:
    """A UTF-8 text file that takes the place of `path` when the block ends well.

    After a crash `path` holds the old content or the new; after an exception the old.
    """
    part = path.with_name(f"{path.name}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
