"""Pinned memory and copies on a real GPU."""

import pytest
import torch

from headrace.storage import DeviceSlab, HostArena, Transfer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
MIB = 2**20
GIB = 2**30


def test_bytes_cross_to_the_device_and_back_in_the_order_of_their_fences() -> None:
    device = torch.device("cuda")
    with HostArena(64 * MIB, pin=True) as arena, Transfer(device) as transfer:
        assert arena.pinned
        source, target = (arena.carve(16 * MIB).tensor(torch.int32, 4 * MIB) for _ in range(2))
        resident = DeviceSlab(16 * MIB, device).carve(16 * MIB).tensor(torch.int32, 4 * MIB)
        for round_ in range(20):
            source.fill_(round_)
            transfer.to_device(source, resident).order()
            resident.mul_(3)
            transfer.to_host(resident, target, after=transfer.fence()).wait()
            assert bool((target == 3 * round_).all())
        stats = transfer.stats()
        assert stats["h2d"].payload_bytes == stats["d2h"].payload_bytes == 20 * 16 * MIB
        assert stats["h2d"].busy_seconds > 0
        del source, target


def test_a_copy_may_lie_anywhere_in_a_large_pinned_arena() -> None:
    device = torch.device("cuda")
    with HostArena(18 * GIB, pin=True) as arena, Transfer(device) as transfer:
        slots = [arena.carve(GIB + 4096) for _ in range(17)]
        resident = torch.empty(GIB + 4096, dtype=torch.uint8, device=device)
        for slot in slots:
            transfer.to_device(slot.tensor(torch.uint8, GIB + 4096), resident).wait()
        del slots, slot
