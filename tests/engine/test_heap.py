import gc
import os
import platform
import subprocess
import sys

import pytest
import torch

from bench.watch import resident
from headrace.engine.heap import trim_heap

MIB = 2**20
BLOCKS = 800


def test_what_was_freed_is_given_back_though_something_above_it_lives() -> None:
    """Blocks too small to be mapped by themselves; every hundredth is kept."""
    gc.collect()
    trim_heap()
    before = resident()
    blocks = [torch.ones(MIB // 32) for _ in range(BLOCKS)]  # of 128 KiB
    full = resident()
    assert full - before > 50 * MIB  # of 100: tests before this one have left some free
    kept = blocks[::100]
    del blocks
    trim_heap()
    assert resident() - before < 30 * MIB
    assert all(float(block[-1]) == 1 for block in kept)


FAULTS = """
import ctypes, resource
{before}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def use(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        piece = libc.malloc(2**21)
        libc.memset(piece, 1, 2**21)
        libc.free(piece)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
use(4)
print(use(8))
"""


def faults(before: str = "") -> int:
    """Page faults of eight uses of 2 MiB that were used before, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", FAULTS.format(before=before)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="thresholds are glibc's")
def test_memory_freed_goes_back_at_once_where_thresholds_are_fixed() -> None:
    fixed = "from headrace.engine.heap import fix_thresholds; fix_thresholds(2**20, num_arenas=2)"
    assert faults() < 8  # kept, and used again
    assert faults(fixed) >= 8  # fresh from the system every time, in pages of any size
