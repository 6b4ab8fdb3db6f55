"""Files and folders that are there whole or not at all, and their removal."""

import glob
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def in_place_of(target: Path) -> Iterator[Path]:
    """A path beside `target` to make a file or a folder at, which takes its name in the end.

    Nothing is left of it when the block raises; what a process that died has left of `target` goes
    first, and of one that had our id, as the first process of every container has the same. One
    process makes a target once at a time. Not synced: for what can be made again.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{glob.escape(target.name)}.part-*"):
        pid = left.name.rpartition("-")[2]
        is_dead = pid == str(os.getpid()) or not Path("/proc", pid).exists()
        if pid.isascii() and pid.isdecimal() and is_dead:
            discard(left)
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        yield part
        part.rename(target)
    finally:
        discard(part)


def discard(path: Path) -> None:
    """Remove a file, a link or a whole tree; nothing where there is none. OSError."""
    with suppress(FileNotFoundError):
        path.unlink() if path.is_symlink() or not path.is_dir() else shutil.rmtree(path)
