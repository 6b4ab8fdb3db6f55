import gc

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
    assert full - before > 80 * MIB
    kept = blocks[::100]
    del blocks
    trim_heap()
    assert resident() - before < 30 * MIB
    assert all(float(block[-1]) == 1 for block in kept)
