"""Room that is held back on a drive, for the day when it is full."""

import logging
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from .full_disk import is_full

T = TypeVar("T")

RESERVE_BYTES = 1 << 20  # some hundred pages of the journal and its log
LEAST_FREE_BYTES = 64 << 20  # with less on the drive none is taken
log = logging.getLogger(__name__)


class Reserve:
    """A file that takes room until something must be written so that more can be freed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.keep()

    def keep(self) -> None:
        """Take the room, where there is plenty and it is not taken. Blocks for a moment."""
        with suppress(OSError):
            if self._is_whole() or shutil.disk_usage(self._path.parent).free < LEAST_FREE_BYTES:
                return
            with self._path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)

    def _is_whole(self) -> bool:
        """Whether the room is taken; a death in between leaves a file that takes less."""
        return self._path.exists() and self._path.stat().st_size >= RESERVE_BYTES

    def spend(self, attempt: Callable[[], T]) -> T:
        """What `attempt` gives; where it finds no room, with this room given to it once."""
        try:
            return attempt()
        except Exception as error:
            if not (is_full(error) and self._path.exists()):
                raise
            log.warning("the drive is full; using the room held back in %s", self._path)
            self._path.unlink(missing_ok=True)
        return attempt()
