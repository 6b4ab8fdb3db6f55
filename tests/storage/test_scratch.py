"""Scratch beside a store: bytes come back as they were, are counted, and leave nothing behind."""

from pathlib import Path

import pytest
import torch

from fakes import FaultyDisk, MemoryDisk
from headrace.storage import (
    Corrupt,
    HostArena,
    HostSlot,
    IoFailed,
    Misuse,
    NoSpace,
    TensorStore,
    VolumeConfig,
    WriteBudgetSpent,
)
from headrace.storage.files import SCRATCH_NAME
from store_cases import content_of, expected, small_records, volumes_in, write_all

PAGE = 4096
STRIPE = 4 * PAGE


def _store(volumes: list[VolumeConfig], **settings: object) -> TensorStore:
    values = {"reserve_bytes": 0, "stripe_bytes": STRIPE, **settings}
    return TensorStore.create(volumes, small_records(2), name="job", **values)  # type: ignore[arg-type]


def _fill(slot: HostSlot, seed: int, num_bytes: int) -> torch.Tensor:
    bytes_ = slot.tensor(torch.uint8, num_bytes)
    bytes_.random_(0, 256, generator=torch.Generator().manual_seed(seed))
    return bytes_


def test_pieces_of_any_length_come_back_from_several_volumes(
    tmp_path: Path, arena: HostArena
) -> None:
    sizes = [1, PAGE, PAGE + 1, 3 * STRIPE + 5]
    starts = [0, PAGE, 2 * PAGE, 4 * PAGE]
    with (
        _store(volumes_in(tmp_path, 2)) as store,
        store.open_scratch(32 * PAGE, reserve_bytes=0) as scratch,
    ):
        slots = [arena.carve(size) for size in sizes]
        kept = [_fill(one, size, size).clone() for one, size in zip(slots, sizes, strict=True)]
        before = store.stats()
        writes = [scratch.write(*one) for one in zip(starts, slots, sizes, strict=True)]
        for write in writes:
            write.result()
        for slot, size in zip(slots, sizes, strict=True):
            slot.tensor(torch.uint8, size).zero_()
        for one in reversed(list(zip(starts, slots, sizes, strict=True))):
            scratch.read(*one).result()
        found = [slot.tensor(torch.uint8, size) for slot, size in zip(slots, sizes, strict=True)]
        assert all(torch.equal(a, b) for a, b in zip(found, kept, strict=True))
        for link in ("nvme_read", "nvme_write"):
            moved = store.stats().links[link] - before.links[link]
            assert moved.payload_bytes == sum(sizes)
            each = [one[link].payload_bytes for one in store.stats().per_volume.values()]
            assert all(each)


def test_what_was_written_counts_as_wear_and_against_the_limit(
    tmp_path: Path, arena: HostArena
) -> None:
    with (
        _store(volumes_in(tmp_path), max_bytes_written=40 * PAGE) as store,
        store.open_scratch(30 * PAGE, reserve_bytes=0) as scratch,
    ):
        slot = arena.carve(30 * PAGE)
        store.begin(1)
        scratch.write(0, slot, 30 * PAGE).result()
        assert sum(one.store_written_bytes for one in store.wear()) == 30 * PAGE
        with pytest.raises(WriteBudgetSpent):
            store.begin(2)


def test_a_scratch_has_no_name_and_a_store_can_be_removed_with_one_left_over(
    tmp_path: Path,
) -> None:
    volumes = volumes_in(tmp_path)
    path = volumes[0].path / "job" / SCRATCH_NAME
    with _store(volumes) as store:
        path.write_bytes(b"of a process that was killed while it made one")
        with store.open_scratch(PAGE, reserve_bytes=0):
            assert not path.exists()
        path.write_bytes(b"once more")
    TensorStore.remove(volumes, name="job")
    assert not (volumes[0].path / "job").exists()


def test_scratch_that_does_not_fit_is_refused_with_the_numbers_and_the_store_goes_on(
    tmp_path: Path, slot: HostSlot
) -> None:
    (volume,) = volumes_in(tmp_path)
    tight = [VolumeConfig(path=volume.path, limit_bytes=1 << 20)]
    with pytest.raises(NoSpace, match=r"\d+ MiB are needed"):
        _store(tight, scratch_bytes=1 << 20)
    with _store(tight) as store:
        with pytest.raises(NoSpace, match=r"\d+ MiB are needed"):
            store.open_scratch(1 << 20, reserve_bytes=0)
        store.begin(1)
        write_all(store, slot, 1)
        store.commit({})
        assert content_of(store, slot) == expected(small_records(2), slot, 1)
    assert [path.name for path in (volume.path / "job").glob("scratch*")] == []


def test_other_bytes_than_were_written_are_told(tmp_path: Path, arena: HostArena) -> None:
    disk = MemoryDisk()
    with (
        _store(volumes_in(tmp_path), open_volume=disk.open) as store,
        store.open_scratch(8 * PAGE, reserve_bytes=0) as scratch,
    ):
        slot = arena.carve(2 * PAGE)
        kept = bytes(_fill(slot, 1, 100).tolist())
        scratch.write(PAGE, slot, 100).result()
        content = next(c for path, c in disk.files.items() if path.name == SCRATCH_NAME)
        content[content.find(kept)] ^= 1
        with pytest.raises(Corrupt, match="scratch on volume .* resume from the last commit"):
            scratch.read(PAGE, slot, 100).result()
        with pytest.raises(Misuse, match="were not written"):
            scratch.read(0, slot, 100)
        with pytest.raises(Misuse, match="there are 32768 bytes"):
            scratch.write(7 * PAGE, slot, PAGE + 1)


def test_a_failing_write_of_scratch_leaves_the_store_as_it_is(
    tmp_path: Path, arena: HostArena
) -> None:
    disk = FaultyDisk()
    with (
        _store(volumes_in(tmp_path), open_volume=disk.open) as store,
        store.open_scratch(8 * PAGE, reserve_bytes=0) as scratch,
    ):
        slot = arena.carve(64 * PAGE)
        store.begin(1)
        write_all(store, slot, 1)
        disk.faults[disk.num_operations] = "enospc"
        with pytest.raises(IoFailed):
            scratch.write(0, slot, PAGE).result()
        store.commit({})
        assert content_of(store, slot) == expected(small_records(2), slot, 1)
