"""Boundary activations on NVMe come back as they were kept, in either order, or say why not."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest
import torch

from fakes import FaultyDisk, MemoryDisk
from headrace.engine.homes import Order
from headrace.engine.parked import NUM_ACTIVATION_BUFFERS, NUM_PINNED_BUFFERS
from headrace.engine.scratch_activations import ScratchActivations, ScratchRoad
from headrace.storage import HostArena, IoFailed, TensorStore, Transfer
from store_cases import small_records, volumes_in

SHAPES = [(2, 5, 8), (1, 700, 8), (1, 7, 8)]
LARGEST = 700 * 8
LAYERS = (1, 2, 4, 5)
DTYPE = torch.bfloat16
ROOM = 1 << 20


class Way:
    """A road over a disk, with what it stands on."""

    def __init__(self, disk: MemoryDisk, tmp_path: Path) -> None:
        self.store = TensorStore.create(
            volumes_in(tmp_path, 2),
            small_records(1),
            name="job",
            reserve_bytes=0,
            stripe_bytes=1 << 13,
            open_volume=disk.open,
        )
        self.scratch = self.store.open_scratch(ROOM, reserve_bytes=0)
        self.arena = HostArena(ROOM)
        self.transfer = Transfer(torch.device("cpu"))
        self.road = ScratchRoad(
            self.scratch,
            transfer=self.transfer,
            rooms=[torch.empty(LARGEST, dtype=DTYPE) for _ in range(NUM_ACTIVATION_BUFFERS)],
            ring=[self.arena.carve(2 * LARGEST) for _ in range(NUM_PINNED_BUFFERS)],
        )

    def step(self, order: Order = "layers") -> ScratchActivations:
        return ScratchActivations(self.road, dtype=DTYPE, layers=LAYERS, shapes=SHAPES, order=order)

    def close(self) -> None:
        for one in (self.road, self.scratch, self.store, self.transfer, self.arena):
            one.close()


@pytest.fixture
def way(tmp_path: Path) -> Iterator[Way]:
    with closing(Way(MemoryDisk(), tmp_path)) as way:
        yield way


def _inputs() -> dict[tuple[int, int], torch.Tensor]:
    return {(i, m): torch.randn(shape).to(DTYPE) for i in LAYERS for m, shape in enumerate(SHAPES)}


def _go(step: ScratchActivations, kept: dict[tuple[int, int], torch.Tensor], order: Order) -> None:
    """Forward and backward over the layers, each input used before the next one is fetched."""
    each = range(len(SHAPES))
    rounds = [list(each)] if order == "layers" else [[m] for m in each]
    for chosen in rounds:
        for layer in LAYERS:
            for m in chosen:
                step.keep(layer, m, kept[layer, m].clone())
        for layer in reversed(LAYERS):
            for m in chosen:
                assert torch.equal(step.fetch(layer, m), kept[layer, m])


@pytest.mark.parametrize("order", get_args(Order))
def test_inputs_come_back_step_after_step(way: Way, order: Order) -> None:
    moved = 0
    for _ in range(3):
        kept = _inputs()
        _go(way.step(order), kept, order)
        moved += sum(one.nbytes for one in kept.values())
    links = {**way.store.stats().links, **way.transfer.stats()}
    assert {name: stats.payload_bytes for name, stats in links.items()} == dict.fromkeys(
        ("nvme_read", "nvme_write", "h2d", "d2h"), moved
    )


def test_forward_goes_on_while_the_drive_is_no_more_than_a_ring_behind(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with closing(Way(disk, tmp_path)) as way:
        disk.faults = dict.fromkeys(range(disk.num_operations, disk.num_operations + 100), "hang")
        step, kept = way.step(), _inputs()
        items = list(kept)
        for item in items[: way.road.depth]:
            step.keep(*item, kept[item])  # returns, though nothing can be written
        beyond = items[way.road.depth]
        one_more = threading.Thread(target=step.keep, args=(*beyond, kept[beyond]))
        one_more.start()
        one_more.join(0.2)
        assert one_more.is_alive()
        disk.released.set()
        one_more.join(10)
        assert not one_more.is_alive()


def test_backward_finds_what_it_wants_first_already_read(way: Way) -> None:
    step, kept = way.step(), _inputs()
    for item, hidden in kept.items():
        step.keep(*item, hidden)
    first = [(layer, m) for layer in reversed(LAYERS) for m in range(len(SHAPES))][: way.road.depth]
    ahead = sum(kept[item].nbytes for item in first)
    deadline = time.monotonic() + 60
    while way.store.stats().links["nvme_read"].payload_bytes < ahead:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert way.store.stats().links["nvme_read"].payload_bytes == ahead


@pytest.mark.parametrize("fails_at", [0, 7, 20, 30])
def test_a_failing_drive_is_told_and_ends_nothing_but_the_step(
    tmp_path: Path, fails_at: int
) -> None:
    disk = FaultyDisk()
    with closing(Way(disk, tmp_path)) as way:
        disk.faults[disk.num_operations + fails_at] = "eio"
        with pytest.raises(IoFailed):
            _go(way.step(), _inputs(), "layers")


def test_closing_ends_reads_that_wait_for_a_room_that_will_not_come(way: Way) -> None:
    step, kept = way.step(), _inputs()
    for (layer, m), hidden in kept.items():
        step.keep(layer, m, hidden)
    step.fetch(LAYERS[-1], 0)
    way.road.close()
    assert not [one.name for one in threading.enumerate() if one.name.startswith("scratch")]
