"""A gradient that comes up waits for the last use of its buffer, whoever forgets to let go."""

import pytest
import torch

from headrace.engine.grad_buffers import GradBuffer, GradBuffers
from headrace.storage import DeviceSlab, Fence


class Device:
    """Counts the work that compute is given; a fence is behind all of it so far."""

    def __init__(self) -> None:
        self.given = 0
        self.behind: dict[Fence, int] = {}

    def work(self) -> None:
        self.given += 1

    def fence(self) -> Fence:
        fence = Fence()
        self.behind[fence] = self.given
        return fence


def buffers(device: Device, num: int) -> GradBuffers:
    slab = DeviceSlab(4096 * num, torch.device("cpu"))
    return GradBuffers([GradBuffer(slab.carve(4096)) for _ in range(num)], device.fence)


@pytest.mark.parametrize("lets_go", [True, False])
@pytest.mark.parametrize("num", [1, 2])
def test_a_buffer_comes_with_the_point_behind_its_last_use(num: int, lets_go: bool) -> None:
    device = Device()
    ring = buffers(device, num)
    last_use: dict[GradBuffer, int] = {}
    for step in range(1, 7):
        buffer, used = ring.take()
        assert device.behind.get(used, 0) >= last_use.get(buffer, 0)
        if lets_go and step > num:  # and behind no other work, done since
            assert device.behind[used] == last_use[buffer]
        device.work()
        last_use[buffer] = device.given
        if lets_go:
            ring.let_go()
        device.work()
    assert len(last_use) == num


def test_what_is_let_go_twice_was_used_up_to_the_first_time() -> None:
    device = Device()
    ring = buffers(device, 2)
    first, _ = ring.take()
    device.work()
    ring.let_go()
    device.work()
    ring.let_go()
    ring.take()
    again, used = ring.take()
    assert again is first and device.behind[used] == 1
