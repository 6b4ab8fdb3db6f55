"""Pinned memory and copies on a real GPU."""

from time import perf_counter, sleep

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


def test_large_copies_in_pieces_bring_every_byte_in_order() -> None:
    device = torch.device("cuda")
    count = GIB // 10 + 3  # elements; no whole number of pieces
    last = slice(count - 16 * MIB, count)  # a small copy to where a large one's last piece goes
    with HostArena(2 * GIB, pin=True) as arena, Transfer(device) as transfer:
        source, other, target = (
            arena.carve(4 * count).tensor(torch.int32, count) for _ in range(3)
        )
        resident = torch.empty(count, dtype=torch.int32, device=device)
        source.copy_(torch.arange(count, dtype=torch.int32))
        other.fill_(-1)
        for _ in range(3):
            transfer.to_device(source, resident, after=transfer.fence())
            transfer.to_device(other[last], resident[last]).order()
            resident.add_(1)
            transfer.to_host(resident, target, after=transfer.fence()).wait()
            assert torch.equal(target[: last.start], source[: last.start] + 1)
            assert not target[last].any()
        moved = 3 * 4 * (count + last.stop - last.start)
        assert transfer.stats()["h2d"].payload_bytes == moved
        del source, other, target


@pytest.mark.parametrize("down", [False, True], ids=["up", "down"])
def test_an_urgent_copy_gets_in_between_the_pieces_of_a_large_one(down: bool) -> None:
    device = torch.device("cuda")
    large, small = 2 * GIB, 32 * MIB
    with HostArena(large + small + MIB, pin=True) as arena, Transfer(device) as transfer:
        copy = transfer.to_host if down else transfer.to_device

        def pair(size: int) -> tuple[torch.Tensor, torch.Tensor]:
            there = torch.zeros(size, dtype=torch.uint8, device=device)
            here = arena.carve(size).tensor(torch.uint8, size)
            return (there, here) if down else (here, there)

        of_large, of_small = pair(large), pair(small)
        copy(*of_small, urgent=True).wait()
        waited = []
        for _ in range(3):
            torch.cuda.synchronize()
            begun = perf_counter()
            through = copy(*of_large)
            sleep(0.005)
            asked = perf_counter()
            copy(*of_small, urgent=True).wait()
            waited.append(perf_counter() - asked)
            through.wait()
            whole = perf_counter() - begun
        assert min(waited) < whole / 5  # in one stream: until the large one is through
        del of_large, of_small, copy
