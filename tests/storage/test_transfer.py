"""Copies between host and device: real, counted, ordered."""

import time
from itertools import pairwise

import pytest
import torch

from headrace.storage import DeviceSlab, HostArena, Misuse, Transfer
from headrace.storage.transfer import pieces_of

MIB = 2**20
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = [
    pytest.param("cpu"),
    pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_CUDA]),
]


@pytest.mark.parametrize("device_name", DEVICES)
def test_bytes_go_up_and_come_back(device_name: str) -> None:
    device = torch.device(device_name)
    size = 1 << 20
    with (
        HostArena(8 * size, pin=device.type == "cuda") as arena,
        DeviceSlab(4 * size, device) as slab,
        Transfer(device) as transfer,
    ):
        source = arena.carve(4 * size).tensor(torch.float32, size)
        target = arena.carve(4 * size).tensor(torch.float32, size)
        on_device = slab.carve(4 * size).tensor(torch.float32, size)
        source.copy_(torch.arange(size))
        up = transfer.to_device(source, on_device, payload_bytes=4 * size - 100)
        up.order()
        on_device.mul_(2)
        down = transfer.to_host(on_device, target, after=transfer.fence())
        down.wait()
        assert down.done()
        assert torch.equal(target, source * 2)
        stats = transfer.stats()
    assert stats["h2d"].payload_bytes == 4 * size - 100
    assert stats["h2d"].padding_bytes == 100
    assert stats["d2h"].payload_bytes == 4 * size
    assert stats["d2h"].operations == 1
    assert stats["h2d"].busy_seconds > 0


def test_tensors_that_do_not_match_are_refused() -> None:
    with Transfer(torch.device("cpu")) as transfer:
        with pytest.raises(Misuse, match="4 of torch.float32, target 5"):
            transfer.to_device(torch.zeros(4), torch.zeros(5))
        with pytest.raises(Misuse, match="torch.int32"):
            transfer.to_host(torch.zeros(4), torch.zeros(4, dtype=torch.int32))


def test_a_copy_on_cpu_is_done_when_it_returns() -> None:
    with Transfer(torch.device("cpu")) as transfer:
        source, target = torch.ones(2, 3), torch.zeros(6)
        fence = transfer.to_device(source, target)
        assert fence.done() and target.tolist() == [1.0] * 6
        source.zero_()
        assert target.sum() == 6
        fence.wait()
        fence.order()
        assert transfer.fence().done()


@pytest.mark.parametrize("device_name", DEVICES)
def test_the_times_of_copies_are_on_the_monotonic_clock(device_name: str) -> None:
    device = torch.device(device_name)
    size = 1 << 22
    with (
        HostArena(size, pin=device.type == "cuda") as arena,
        DeviceSlab(size, device) as slab,
        Transfer(device) as transfer,
    ):
        host, on_device = (one.carve(size).tensor(torch.uint8, size) for one in (arena, slab))
        before = time.monotonic()
        for _ in range(3):
            transfer.to_device(host, on_device).wait()
        between = transfer.stats()["h2d"]
        transfer.to_device(host, on_device).wait()
        after = time.monotonic()
        stats = transfer.stats()["h2d"]
    assert len(stats.spans) == 4
    slack = 0.002  # the device's clock is read with some delay
    moments = [before - slack, *(moment for span in stats.spans for moment in span), after + slack]
    assert all(later >= moment - slack for moment, later in pairwise(moments))
    busy = sum(stop - start for start, stop in stats.spans)
    assert busy == pytest.approx(stats.busy_seconds)
    assert (stats - between).spans == stats.spans[3:]


@pytest.mark.parametrize(
    ("num_bytes", "pieces"),
    [(4, 1), (64 * MIB, 1), (64 * MIB + 4, 2), (200 * MIB, 4), (2048 * MIB, 32), (4096 * MIB, 32)],
)
def test_a_large_copy_is_cut_into_parts_of_64_mib_but_no_more_than_32(
    num_bytes: int, pieces: int
) -> None:
    source, target = (torch.empty(num_bytes // 4, dtype=torch.int32) for _ in range(2))
    parts = pieces_of(source, target)
    assert len(parts) == pieces
    at = 0
    for part, place in parts:
        assert part.numel() == place.numel()
        assert part.data_ptr() == source.data_ptr() + at
        assert place.data_ptr() == target.data_ptr() + at
        at += part.nbytes
    assert at == num_bytes
