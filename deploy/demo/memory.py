"""The worker's memory, read from the kernel and not from the worker's own word."""

from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Self

PERIOD_SECONDS = 0.05


class MemoryWatch:
    """Samples the resident memory of whichever process `worker_pid` names, while the block runs.

    `peaks` holds the highest value of each process, in bytes.
    """

    def __init__(self, worker_pid: Callable[[], int | None]) -> None:
        self.peaks: dict[int, int] = {}
        self._worker_pid = worker_pid
        self._ended = Event()
        self._thread = Thread(target=self._watch, name="memory-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(PERIOD_SECONDS):
            pid = self._worker_pid()
            if pid and (now := resident_bytes(pid)):
                self.peaks[pid] = max(self.peaks.get(pid, 0), now)


def resident_bytes(pid: int) -> int:
    """Bytes of a process in memory now; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in text.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0  # a process that has ended but is not yet reaped
