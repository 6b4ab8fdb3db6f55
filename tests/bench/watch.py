"""Memory in use, watched from a thread while something runs."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pynvml


def memory() -> dict[str, int]:
    """Bytes of this process, by the names of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.startswith(("VmRSS", "VmHWM", "Rss")))
    return {name.rstrip(":"): int(kib) * 1024 for name, kib, _ in fields}


def reset_peak() -> None:
    """Let VmHWM start again from the present resident memory (proc_pid_clear_refs(5), 5)."""
    Path("/proc/self/clear_refs").write_text("5")


def used_on_gpu() -> Callable[[], int]:
    """What tells the bytes in use on the first GPU, by whomever; it starts no CUDA."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def resident() -> int:
    """Bytes of host memory that this process holds, pinned ones too."""
    return int(psutil.Process().memory_info().rss)


class Sampling:
    """Calls `look` again and again from a thread of its own; a context manager."""

    def __init__(self, look: Callable[[], object], *, every_seconds: float) -> None:
        self._look = look
        self._every_seconds = every_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory sampler", daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(self._every_seconds):
            self._look()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        self._look()


class PeakMemory(Sampling):
    """The most memory in use above that at the start: `bytes`."""

    def __init__(self, used: Callable[[], int], *, every_seconds: float = 0.005) -> None:
        super().__init__(self.sample, every_seconds=every_seconds)
        self._used = used
        self._start = used()
        self.bytes = 0

    def sample(self) -> int:
        """Look now; bytes above the start."""
        now = self._used() - self._start
        self.bytes = max(self.bytes, now)
        return now
