"""Writing a small file so that it is there whole, on the drive, or not at all."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from headrace.storage import whole_file


@contextmanager
def write_whole(path: Path, *, mode: int = 0o644) -> Iterator[TextIO]:
    """A UTF-8 text file that takes the place of `path` when the block ends well.

    After a crash `path` holds the old content or the new; after an exception the old.
    """
    with whole_file(path, mode=mode) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            text.detach()  # which writes what is left, and leaves the file open


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(path, mode=0o600) as file:
        file.write(text)
