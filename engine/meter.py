"""How far the reading of files has come, told as seldom as people can see. Pure."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

PROGRESS_SECONDS = 0.25

Progress = Callable[[int, int], None]


class Meter:
    """Tells `progress` bytes read and bytes in all, about four times a second."""

    def __init__(self, files: Sequence[Path], progress: Progress | None) -> None:
        self._progress = progress
        self._done = self._here = 0
        self._total = sum(path.stat().st_size for path in files)
        self._next = 0.0

    def at(self, num_bytes: int) -> None:
        """So many bytes of the present file are read."""
        self._here = num_bytes
        if self._progress is not None and time.monotonic() >= self._next:
            self.tell()

    def end_file(self, num_bytes: int) -> None:
        """The present file, of that size, is done with."""
        self._done, self._here = self._done + num_bytes, 0

    def tell(self) -> None:
        """Tell it now."""
        self._next = time.monotonic() + PROGRESS_SECONDS
        if self._progress is not None:
            self._progress(self._done + self._here, self._total)
