"""Registering host memory with CUDA: populated by several threads, locked page by page once."""

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from .errors import NoSpace
from .numa import cpus_near
from .record import round_up

# One registration of 512 GiB or more fails on recent drivers; and since CUDA refuses a copy that
# crosses from one registration into the next, pieces are nearly as large as that.
_PIECE_BYTES = 480 << 30
_HUGE_PAGE_BYTES = 2 << 20
_MADV_POPULATE_WRITE = 23
_NUM_THREADS = 8
_cuda: Any = torch.cuda  # partly without types


def register(start: int, num_bytes: int) -> list[int]:
    """Populate the memory at address `start` and register it, all of it or none.

    Returns the addresses to hand to `unregister`. Raises NoSpace when CUDA refuses.
    """
    _populate(start, num_bytes)
    registered: list[int] = []
    for offset in range(0, num_bytes, _PIECE_BYTES):
        size = min(_PIECE_BYTES, num_bytes - offset)
        code = int(_cuda.cudart().cudaHostRegister(start + offset, size, 0))
        if code != 0:
            unregister(registered)
            raise NoSpace(
                f"CUDA refused to register {size} bytes of host memory (error {code}); "
                "lower the host budget, or raise the limit of locked memory"
            )
        registered.append(start + offset)
    return registered


def unregister(registered: list[int]) -> None:
    """Undo `register`, after all copies under way; the list is empty afterwards."""
    if registered:
        torch.cuda.synchronize()
    while registered:
        _cuda.cudart().cudaHostUnregister(registered.pop())


def _populate(start: int, num_bytes: int) -> None:
    """Fault the pages in, with several threads; older kernels do it when they register."""
    share = round_up(max(1, -(-num_bytes // _NUM_THREADS)), _HUGE_PAGE_BYTES)
    advise: Callable[..., int] = ctypes.CDLL(None).madvise

    near = _cpus_near_the_gpu()

    def part(offset: int) -> None:
        if near:
            os.sched_setaffinity(0, near)  # of this thread alone, which ends with its part
        size = ctypes.c_size_t(min(share, num_bytes - offset))
        advise(ctypes.c_void_p(start + offset), size, _MADV_POPULATE_WRITE)

    threads = [
        threading.Thread(target=part, args=(offset,)) for offset in range(0, num_bytes, share)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _cpus_near_the_gpu() -> set[int]:
    """Processors beside the current GPU that this process may use; empty where it is all one."""
    device = _cuda.get_device_properties(_cuda.current_device())
    parts = [getattr(device, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    if any(part is None for part in parts):
        return set()
    domain, bus, number = parts
    return cpus_near(f"{domain:04x}:{bus:02x}:{number:02x}.0") & os.sched_getaffinity(0)
