"""A file on a volume to measure with: reserved, written once, loaded again and again, removed."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from .config import VolumeConfig
from .layout import BLOCK_BYTES, MIB
from .load import LoadKind, LoadResult, run_load
from .pool import HostArena
from .volume import open_file_volume, probe_volume
from .working_file import working_file


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCase:
    """Calls of `block_bytes`, `depth` of them in flight."""

    kind: LoadKind
    block_bytes: int
    depth: int


_FILL = LoadCase(kind="write", block_bytes=BLOCK_BYTES, depth=4)


class DriveBench:
    """A file of `file_bytes` on a volume and the memory to load it with; a context manager."""

    def __init__(self, config: VolumeConfig, *, file_bytes: int, arena_bytes: int) -> None:
        """Reserve and fill the file, with bytes that no drive can compress.

        Raises StoreError for a volume that cannot be used, NoSpace when the file does not fit.
        """
        self.status = probe_volume(config)
        self.file_bytes = file_bytes
        with ExitStack() as stack:
            arena_bytes = max(arena_bytes, _FILL.block_bytes * _FILL.depth)
            self._arena = stack.enter_context(HostArena(arena_bytes))
            file = working_file(config.path, "bench", file_bytes)
            self.path: Path = stack.enter_context(file)
            self._volume = open_file_volume(self.status, self.path, False)
            stack.callback(self._volume.close)
            self.run(_FILL, file_bytes)
            self._volume.sync()
            self._held = stack.pop_all()

    def run(self, case: LoadCase, num_bytes: int) -> LoadResult:
        """Move `num_bytes` as the store would: its queue, its threads, huge pages, no checksum."""
        self._arena.reset()
        buffers = [self._arena.carve(case.block_bytes).view for _ in range(case.depth)]
        if case.kind != "read":
            for buffer in buffers:
                noise = os.urandom(min(MIB, case.block_bytes))
                buffer[:] = noise * (case.block_bytes // len(noise))
        region = (0, self.file_bytes)
        return run_load(self._volume, buffers, case.kind, region=region, num_bytes=num_bytes)

    def close(self) -> None:
        """Remove the file and let the memory go."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def busy_python() -> Iterator[None]:
    """A thread that loops in pure Python as long as the block runs: it fights for the GIL."""
    over = False

    def spin() -> None:
        number = 0
        while not over:
            number += 1

    thread = threading.Thread(target=spin, name="busy", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over = True
        thread.join()
