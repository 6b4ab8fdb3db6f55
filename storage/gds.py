"""GPUDirect Storage through kvikio: the only file that imports it, and then only when asked to.

`GdsVolume` moves device memory by kvikio and everything else by the direct road. Whether GDS is
real is proven elsewhere (`gds_probe.py`), by running `main` of this file in a child process:
cuFile can hang for ever on some kernels, and only its own counters tell the truth.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .errors import IoFailed, StoreError
from .extras import install_line
from .layout import BLOCK_BYTES
from .slab import DeviceView
from .volume import FileVolume

NUM_THREADS = 8
PROOF_BYTES = 16 << 20
COUNTERS = ("p2p_reads", "p2p_writes", "nvfs_reads", "nvfs_writes", "posix_reads", "posix_writes")


def load_kvikio() -> Any:
    """Import kvikio and set it up for true GDS; StoreError says what is missing.

    Its loader hides which library it lacks, so the two that it needs are imported first.
    """
    try:
        for name in ("rapids_logger", "cuda.pathfinder"):
            import_module(name)
        import kvikio
        import kvikio.defaults
    except Exception as error:  # it raises RuntimeError too, for a library that is not there
        raise StoreError(
            f"kvikio cannot be loaded: {error!r}; {install_line('gds')}, or by the line "
            "without cupy in storage/README.md"
        ) from error
    kvikio.defaults.set(
        {
            "compat_mode": kvikio.CompatMode.OFF,
            "num_threads": NUM_THREADS,
            "task_size": BLOCK_BYTES,
        }
    )
    return kvikio


class GdsVolume:
    """A volume whose device memory goes straight to the drive; host memory goes by direct I/O."""

    def __init__(self, path: Path, kvikio: Any, *, read_only: bool = False) -> None:
        """Open the file twice: with O_DIRECT for host memory, and by kvikio (never truncating)."""
        self._path = path
        self._kvikio = kvikio
        self._registered: list[RegisteredMemory] = []
        self._host = FileVolume(path, direct=True, read_only=read_only)
        try:
            self._device = kvikio.CuFile(str(path), "r" if read_only else "r+")
        except Exception as error:
            self._host.close()
            raise StoreError(f"{path} cannot be opened by kvikio: {error}") from error

    def read(self, offset: int, target: Any) -> None:
        """See Volume; `target` may be a view of device memory."""
        if not isinstance(target, DeviceView):
            self._host.read(offset, target)
            return
        self._move("read", self._device.pread, offset, target)

    def write(self, offset: int, source: Any, *, durable: bool = False) -> None:
        """See Volume; `source` may be a view of device memory, which its fence makes ready."""
        if not isinstance(source, DeviceView):
            self._host.write(offset, source, durable=durable)
            return
        source.wait()
        self._move("write", self._device.pwrite, offset, source)
        if durable:
            self.sync()

    def sync(self) -> None:
        """See Volume. One sync covers both descriptors: they are of one file."""
        self._host.sync()

    def register(self, memory: Any) -> None:
        """Make a slab of device memory known to cuFile, until close: small calls gain by it."""
        self._registered.append(RegisteredMemory.of(self._kvikio, memory))

    def close(self) -> None:
        """See Volume. Memory is deregistered while it is still there."""
        try:
            while self._registered:
                self._registered.pop().close()
            self._device.close()
        finally:
            self._host.close()

    def _move(self, operation: str, call: Any, offset: int, view: DeviceView) -> None:
        """One call, all its bytes. kvikio's future does not keep the memory alive; this frame does.

        kvikio's errors carry no errno; reading past the end raises.
        """
        try:
            got = int(call(view, len(view), offset, BLOCK_BYTES).get())
        except Exception as error:
            raise self._failed(operation, offset, len(view), 0, str(error)) from error
        if got != len(view):
            raise self._failed(operation, offset, len(view), got, "kvikio moved fewer bytes")

    def _failed(self, operation: str, offset: int, wanted: int, got: int, cause: str) -> IoFailed:
        return IoFailed(
            volume=str(self._path.parent),
            operation=operation,
            offset=offset,
            wanted=wanted,
            got=got,
            cause=cause,
        )


def open_gds_volume(path: Path, *, read_only: bool) -> GdsVolume:
    """Open a file on a volume for which GDS was proven."""
    return GdsVolume(path, load_kvikio(), read_only=read_only)


@dataclass(frozen=True, slots=True)
class RegisteredMemory:
    """Device memory that cuFile knows. Register whole slabs, once: it pins all of an allocation."""

    kvikio: Any
    memory: Any

    @classmethod
    def of(cls, kvikio: Any, memory: Any) -> "RegisteredMemory":
        """Register; deregister with `close` before the memory is freed."""
        kvikio.memory_register(memory)
        return cls(kvikio, memory)

    def close(self) -> None:
        """Let cuFile forget it."""
        self.kvikio.memory_deregister(self.memory)


def read_counters(cufile: Any) -> dict[str, int]:
    """What cuFile says it really did, summed over GPUs: calls by P2PDMA, nvidia-fs, and POSIX."""
    stats = cufile.StatsLevel3()
    cufile.get_stats_l3(stats.ptr)
    gpus = [stats.per_gpu_stats[i] for i in range(int(stats.num_gpus))]
    return {name: sum(int(getattr(one, f"n_{name}")) for one in gpus) for name in COUNTERS}


def prove(path: Path, kvikio: Any, cufile: Any, memory: Any, other: Any) -> dict[str, Any]:
    """Write `memory` (device bytes) to a file, read it into `other`, and ask the counters."""
    cufile.set_stats_level(3)
    cufile.stats_start()
    before = read_counters(cufile)
    with ExitStack() as stack:
        file = stack.enter_context(kvikio.CuFile(str(path), "r+"))
        for buffer in (memory, other):
            registered = RegisteredMemory.of(kvikio, buffer)
            stack.callback(registered.close)
        written = file.pwrite(memory, memory.nbytes, 0, BLOCK_BYTES).get()
        read = file.pread(other, other.nbytes, 0, BLOCK_BYTES).get()
    after = read_counters(cufile)
    return {
        "whole": written == read == memory.nbytes and bool((memory == other).all()),
        "counters": {name: after[name] - before[name] for name in COUNTERS},
    }


def rate(path: Path, kvikio: Any, memory: Any, num_bytes: int) -> float:
    """Bytes a second of reads from a file into device `memory`, again and again."""
    moved = 0
    start = time.monotonic()
    with kvikio.CuFile(str(path), "r") as file:
        while moved < num_bytes:
            moved += file.pread(memory, memory.nbytes, moved, BLOCK_BYTES).get()
    return moved / (time.monotonic() - start)


def main(task: Mapping[str, Any]) -> None:
    """In the child: do `task`, print one line of JSON. Whatever goes wrong is printed too."""
    try:
        result = _do(task)
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result))
    sys.stdout.flush()


def _do(task: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {"error": "there is no CUDA device"}
    kvikio = load_kvikio()
    path = Path(task["path"])
    memory = torch.randint(0, 256, (PROOF_BYTES,), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    versions = {"kvikio": str(kvikio.__version__), "cuda": str(torch.version.cuda)}
    if task["what"] == "rate":
        kvikio.defaults.set({"compat_mode": getattr(kvikio.CompatMode, task["compat_mode"])})
        memory = torch.empty(task["call_bytes"], dtype=torch.uint8, device="cuda")
        rates = [rate(path, kvikio, memory, task["num_bytes"]) for _ in range(3)]
        return {"bytes_per_second": sorted(rates)[1], "versions": versions}
    from cuda.bindings import cufile

    return {**prove(path, kvikio, cufile, memory, torch.zeros_like(memory)), "versions": versions}


def child_command(task: Mapping[str, Any], variables: Sequence[str]) -> list[str]:
    """The command of a child that runs `main` with this task, `NAME=value` variables set for it."""
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main({dict(task)!r})"
    )
    return ["/usr/bin/env", *variables, sys.executable, "-c", code]
