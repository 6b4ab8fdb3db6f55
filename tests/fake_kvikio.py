"""kvikio and cuFile as far as the store uses them, over plain files and CPU memory.

The interface is that of kvikio 26.10 and cuda-bindings 13.5; what a real driver does is not shown.
"""

import ctypes
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch

Road = Literal["p2p", "nvfs", "posix"]


class FakeFuture:
    """What pread and pwrite return."""

    def __init__(self, outcome: Callable[[], int]) -> None:
        self._outcome = outcome

    def get(self) -> int:
        """The bytes moved; a bare RuntimeError when it went wrong."""
        return self._outcome()

    def done(self) -> bool:
        """The fake is quick."""
        return True


class FakeKvikio:
    """A module object: `CuFile`, `CompatMode`, `defaults`, memory registration."""

    CompatMode = Enum("CompatMode", "OFF ON AUTO")
    __version__ = "26.10.0"

    def __init__(self, road: Road = "p2p") -> None:
        self.road = road
        self.settings: dict[str, Any] = {}
        self.defaults = SimpleNamespace(set=self.settings.update)
        self.counters: dict[str, int] = {}
        self.registered: list[Any] = []
        self.open_files = 0
        self.fault: Literal["", "error", "short", "spoil"] = ""

    def CuFile(self, path: str, flags: str = "r") -> "FakeCuFile":
        """Open a file."""
        return FakeCuFile(self, path, flags)

    def memory_register(self, memory: Any) -> None:
        """Note the memory."""
        self.registered.append(memory)

    def memory_deregister(self, memory: Any) -> None:
        """Forget it; an error when it is not known."""
        self.registered = [one for one in self.registered if one is not memory]

    def count(self, operation: str) -> None:
        """One more call by the fake's road."""
        name = f"n_{self.road}_{operation}s"
        self.counters[name] = self.counters.get(name, 0) + 1


class FakeCuFile:
    """One open file."""

    def __init__(self, kvikio: FakeKvikio, path: str, flags: str) -> None:
        if flags not in ("r", "r+"):
            raise ValueError("mode 'w' truncates")
        self._kvikio = kvikio
        self._file = Path(path).open("rb" if flags == "r" else "r+b", buffering=0)
        kvikio.open_files += 1

    def pread(
        self, buf: Any, size: int, file_offset: int = 0, task_size: int | None = None
    ) -> FakeFuture:
        """Read into memory that speaks of itself by an array interface."""

        def move() -> int:
            self._check()
            self._kvikio.count("read")
            self._file.seek(file_offset)
            data = self._file.read(size // 2 if self._kvikio.fault == "short" else size)
            ctypes.memmove(_address(buf), data, len(data))
            return len(data)

        return FakeFuture(move)

    def pwrite(
        self, buf: Any, size: int, file_offset: int = 0, task_size: int | None = None
    ) -> FakeFuture:
        """Write from such memory."""

        def move() -> int:
            self._check()
            self._kvikio.count("write")
            data = bytearray(ctypes.string_at(_address(buf), size))
            if self._kvikio.fault == "spoil":
                data[0] ^= 1
            self._file.seek(file_offset)
            return int(self._file.write(data) or 0)

        return FakeFuture(move)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()
        self._kvikio.open_files -= 1

    def __enter__(self) -> "FakeCuFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._kvikio.fault == "error":
            raise RuntimeError("Unable to read file: EOF")


def bindings(kvikio: FakeKvikio) -> Any:
    """Bindings whose counters are those of `kvikio`, with none at a lower level than 3."""
    state = SimpleNamespace(level=0, started=False)
    made: dict[int, SimpleNamespace] = {}

    def new() -> SimpleNamespace:
        stats = SimpleNamespace(ptr=len(made), num_gpus=0, per_gpu_stats=[])
        made[stats.ptr] = stats
        return stats

    def fill(pointer: int) -> None:
        names = [f"n_{road}_{op}s" for road in ("p2p", "nvfs", "posix") for op in ("read", "write")]
        counted = kvikio.counters if state.level == 3 and state.started else {}
        made[pointer].num_gpus = 1
        made[pointer].per_gpu_stats = [
            SimpleNamespace(**{name: counted.get(name, 0) for name in names})
        ]

    return SimpleNamespace(
        set_stats_level=lambda level: setattr(state, "level", level),
        stats_start=lambda: setattr(state, "started", True),
        StatsLevel3=new,
        get_stats_l3=fill,
    )


def _address(buf: Any) -> int:
    if isinstance(buf, torch.Tensor):
        return buf.data_ptr()
    return int(buf.__cuda_array_interface__["data"][0])
