"""Fixed memory: exact, aligned, and one storage seen as bytes and as tensors."""

import os
from pathlib import Path

import pytest
import torch

from headrace.storage import DeviceSlab, HostArena, Misuse, NoSpace

CPU = torch.device("cpu")


def test_slots_are_aligned_for_direct_io_and_do_not_overlap() -> None:
    with HostArena(1 << 20) as arena:
        slots = [arena.carve(5000) for _ in range(4)]
        addresses = [slot.tensor(torch.uint8, 1).data_ptr() for slot in slots]
    assert addresses[0] % (2 << 20) == 0
    assert [address - addresses[0] for address in addresses] == [0, 8192, 16384, 24576]
    assert all(slot.nbytes == 8192 for slot in slots)


def test_a_tensor_is_a_view_of_the_slots_bytes() -> None:
    with HostArena(8192) as arena:
        slot = arena.carve(8192)
        tensor = slot.tensor(torch.bfloat16, 3, offset_bytes=4096)
        tensor.copy_(torch.tensor([1.0, 2.0, 3.0]))
        assert bytes(slot.view[4096:4102]) == b"\x80\x3f\x00\x40\x40\x40"
        slot.view[4096:4098] = b"\x00\x40"
        assert tensor.tolist() == [2.0, 2.0, 3.0]
        assert slot.tensor(torch.float32, 0, offset_bytes=8192).numel() == 0


def test_an_arena_gives_what_it_has_and_not_a_byte_more() -> None:
    with HostArena(3 * 4096) as arena:
        arena.carve(2 * 4096)
        assert arena.free_bytes == 4096
        with pytest.raises(NoSpace, match="4096 of 12288 bytes left; a slot of 8192 was wanted"):
            arena.carve(4097)
        arena.reset()
        assert arena.carve(3 * 4096).nbytes == 3 * 4096


def test_a_view_that_leaves_its_slot_is_refused() -> None:
    with HostArena(8192) as arena, DeviceSlab(8192, CPU) as slab:
        for slot in (arena.carve(4096), slab.carve(4096)):
            with pytest.raises(Misuse, match="4096"):
                slot.tensor(torch.float32, 1025)
            with pytest.raises(Misuse):
                slot.tensor(torch.float32, 1, offset_bytes=4094)


def test_memory_costs_what_was_asked_for_and_is_given_back() -> None:
    size = 64 << 20
    before = _rss()
    arena = HostArena(size)
    tensor = arena.carve(size).tensor(torch.uint8, size)
    assert _rss() - before < 4 << 20
    tensor.fill_(1)
    assert size <= _rss() - before < size + (6 << 20)
    arena.close()
    assert _rss() - before < 6 << 20


def _rss() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_slots_in_use_are_neither_taken_back_nor_unmapped() -> None:
    arena = HostArena(4096)
    slot = arena.carve(4096)
    slot.view[:3] = b"abc"
    slot.hold()
    with pytest.raises(Misuse, match="1 slots of the arena are still in use"):
        arena.reset()
    arena.close()
    assert bytes(slot.view[:3]) == b"abc"
    slot.release()


def test_a_quarantine_lasts_until_the_last_operation_is_over() -> None:
    with HostArena(4096) as arena:
        slot = arena.carve(4096)
        slot.quarantine("late")  # nothing is under way any more
        slot.check_usable()
        slot.hold()
        slot.hold()
        slot.quarantine("read of record 'a' timed out")
        slot.release()
        with pytest.raises(Misuse, match="read of record 'a'"):
            slot.check_usable()
        slot.release()
        slot.check_usable()


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_pinning_without_cuda_is_refused() -> None:
    with pytest.raises(Misuse, match="needs CUDA"):
        HostArena(4096, pin=True)


def test_a_device_slab_is_cut_exactly() -> None:
    with DeviceSlab(2048, CPU) as slab:
        one, two = slab.carve(1000), slab.carve(1024)
        one.tensor(torch.float32, 256).fill_(1.0)
        two.tensor(torch.float32, 256).fill_(2.0)
        assert one.tensor(torch.float32, 256).sum().item() == 256
        assert (one.nbytes, slab.free_bytes) == (1024, 0)
        with pytest.raises(NoSpace, match="0 of 2048"):
            slab.carve(1)
        slab.reset()
        assert slab.free_bytes == 2048


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_pinned_arena_is_seen_as_pinned_by_torch() -> None:
    with HostArena(8 << 20, pin=True) as arena:
        assert arena.pinned
        assert arena.carve(1 << 20).tensor(torch.float32, 100).is_pinned()
