"""Whatever a drive does wrong: a named error, no hang, and nothing committed is lost."""

import time
from pathlib import Path

import pytest

from fakes import Fault, FaultyDisk
from headrace.storage import (
    Corrupt,
    HostSlot,
    IoFailed,
    IoTimeout,
    Misuse,
    StoreError,
    TensorStore,
    VolumeConfig,
)
from store_cases import content_of, expected, small_records, volumes_in, write_all

RECORDS = small_records(2)
FIRST_EXTENT = 400 << 10  # behind superblocks and commit bodies


PATIENCE = 60  # seconds until what is awaited counts as lost


def _store_with_one_commit(
    volumes: list[VolumeConfig],
    disk: FaultyDisk,
    slot: HostSlot,
    *,
    io_timeout_seconds: float = 0.3,
) -> TensorStore:
    store = TensorStore.create(
        volumes,
        RECORDS,
        name="job",
        reserve_bytes=0,
        open_volume=disk.open,
        io_timeout_seconds=io_timeout_seconds,
    )
    store.begin(1)
    write_all(store, slot, 1)
    store.commit({})
    return store


def _second_step(store: TensorStore, slot: HostSlot) -> None:
    content_of(store, slot)
    store.begin(2)
    write_all(store, slot, 2)
    store.commit({})


def _operations_of_second_step(tmp_path: Path, slot: HostSlot) -> tuple[int, int]:
    disk = FaultyDisk()
    with _store_with_one_commit(volumes_in(tmp_path), disk, slot) as store:
        first = disk.num_operations
        _second_step(store, slot)
        return first, disk.num_operations


@pytest.mark.parametrize("fault", ["eio", "enospc", "short", "wrong", "delay", "hang"])
def test_a_fault_in_any_operation_is_reported_and_loses_no_commit(
    tmp_path: Path, slot: HostSlot, fault: Fault
) -> None:
    (tmp_path / "dry").mkdir()
    first, stop = _operations_of_second_step(tmp_path / "dry", slot)
    assert stop - first > 8
    (tmp_path / "run").mkdir()
    volumes = volumes_in(tmp_path / "run")
    for index in range(first, stop):
        disk = FaultyDisk({index: fault})
        store = _store_with_one_commit(volumes, disk, slot)
        error: StoreError | None = None
        start = time.monotonic()
        try:
            _second_step(store, slot)
        except StoreError as raised:
            error = raised
        assert time.monotonic() - start < PATIENCE
        disk.released.set()
        store.close()
        disk.faults.clear()
        silent = fault in ("wrong", "delay")
        assert error is not None or silent, f"{fault} in operation {index} went unnoticed"
        assert error is None or fault != "delay", f"a delay in operation {index}: {error}"
        assert not slot.in_use
        _check_nothing_is_lost(volumes, disk, slot, error)
        TensorStore.remove(volumes, name="job")


def _check_nothing_is_lost(
    volumes: list[VolumeConfig], disk: FaultyDisk, slot: HostSlot, error: StoreError | None
) -> None:
    """The content is whole, that of commit 1 or 2; or silent damage is found and named."""
    try:
        with TensorStore.open(volumes, name="job", open_volume=disk.open) as store:
            assert error is not None or store.generation == 2
            value = store.generation
            found = content_of(store, slot)
    except Corrupt:
        assert error is None, "a reported fault may not damage a commit"
        return
    assert found == expected(RECORDS, slot, value)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def volumes(tmp_path: Path) -> list[VolumeConfig]:
    return volumes_in(tmp_path)


def test_an_error_names_volume_offset_and_cause(
    volumes: list[VolumeConfig], disk: FaultyDisk, slot: HostSlot
) -> None:
    with _store_with_one_commit(volumes, disk, slot) as store:
        disk.faults[disk.num_operations] = "eio"
        with pytest.raises(IoFailed, match="Input/output error") as caught:
            store.read_into("layers.1", slot).result()
    assert caught.value.volume == str(volumes[0].path / "job")
    assert caught.value.offset > 0
    assert (caught.value.wanted, caught.value.got) == (20480, 0)


def test_commit_is_refused_after_a_failed_write_until_abort(
    volumes: list[VolumeConfig], disk: FaultyDisk, slot: HostSlot
) -> None:
    with _store_with_one_commit(volumes, disk, slot) as store:
        store.begin(2)
        disk.faults[disk.num_operations] = "eio"
        write = store.write_from("layers.0", slot)
        with pytest.raises(Misuse, match="Input/output error"):
            store.commit({})
        assert isinstance(write.exception(), IoFailed)
        with pytest.raises(Misuse, match="abort"):
            store.write_from("layers.1", slot)
        store.abort()
        assert content_of(store, slot) == expected(RECORDS, slot, 1)
        _second_step(store, slot)
        assert content_of(store, slot) == expected(RECORDS, slot, 2)


def test_a_read_after_a_failed_write_fails_too(
    volumes: list[VolumeConfig], disk: FaultyDisk, slot: HostSlot, other_slot: HostSlot
) -> None:
    with _store_with_one_commit(volumes, disk, slot) as store:
        store.begin(2)
        disk.faults[disk.num_operations] = "eio"
        store.write_from("layers.0", slot)
        with pytest.raises(IoFailed):
            store.read_into("layers.0", other_slot).result()
        store.read_into("layers.0", other_slot, committed=True).result()


@pytest.mark.parametrize("operations_before", [0, 1, 2])  # sync, superblock, its check
def test_the_store_is_read_only_after_a_failed_sync(
    volumes: list[VolumeConfig], disk: FaultyDisk, slot: HostSlot, operations_before: int
) -> None:
    with _store_with_one_commit(volumes, disk, slot) as store:
        store.begin(2)
        write_all(store, slot, 2)
        disk.faults[disk.num_operations + 2 + operations_before] = "eio"  # after the body
        with pytest.raises(IoFailed):
            store.commit({})
        assert store.status().read_only
        with pytest.raises(Misuse, match="read-only"):
            store.begin(3)
        store.abort()
        with pytest.raises(Misuse, match="read-only"):
            store.begin(3)
        assert content_of(store, slot) == expected(RECORDS, slot, 1)


def test_a_hanging_read_times_out_and_keeps_its_slot_reserved(
    volumes: list[VolumeConfig], disk: FaultyDisk, slot: HostSlot
) -> None:
    with _store_with_one_commit(volumes, disk, slot) as store:
        disk.faults[disk.num_operations] = "hang"
        read = store.read_into("layers.0", slot)
        with pytest.raises(IoTimeout, match="layers.0"):
            read.result()
        assert slot.in_use and not read.done()
        with pytest.raises(Misuse, match="not to be used"):
            store.read_into("layers.1", slot)
        disk.released.set()
        read.result()
        store.read_into("layers.1", slot).result()


def test_a_result_may_be_waited_for_shorter_than_the_time_out(
    volumes: list[VolumeConfig], disk: FaultyDisk, slot: HostSlot
) -> None:
    with _store_with_one_commit(volumes, disk, slot, io_timeout_seconds=PATIENCE) as store:
        disk.faults[disk.num_operations] = "hang"
        read = store.read_into("layers.0", slot)
        start = time.monotonic()
        with pytest.raises(IoTimeout):
            read.result(timeout=0.05)
        assert time.monotonic() - start < PATIENCE / 2
        disk.released.set()


def test_close_resolves_what_hangs(
    volumes: list[VolumeConfig], disk: FaultyDisk, slot: HostSlot
) -> None:
    store = _store_with_one_commit(volumes, disk, slot)
    disk.faults[disk.num_operations] = "hang"
    read = store.read_into("layers.0", slot)
    time.sleep(0.05)
    store.close()
    assert read.done() and slot.in_use
    with pytest.raises(IoTimeout):
        read.result()
    disk.released.set()
    deadline = time.monotonic() + PATIENCE
    while slot.in_use and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not slot.in_use


def test_a_cancelled_write_wants_an_abort(
    volumes: list[VolumeConfig], disk: FaultyDisk, slot: HostSlot, other_slot: HostSlot
) -> None:
    with _store_with_one_commit(volumes, disk, slot) as store:
        store.begin(2)
        disk.faults[disk.num_operations] = "hang"
        first = store.write_from("layers.0", slot)
        second = store.write_from("layers.0", other_slot)  # waits for the first
        time.sleep(0.05)
        assert second.cancel() and not first.cancel()
        disk.released.set()
        first.result()
        with pytest.raises(Misuse, match="cancelled"):
            store.commit({})
        store.abort()
        assert content_of(store, slot) == expected(RECORDS, slot, 1)


def test_a_damaged_newest_superblock_is_taken_for_torn(
    volumes: list[VolumeConfig], disk: FaultyDisk, slot: HostSlot
) -> None:
    with _store_with_one_commit(volumes, disk, slot) as store:
        store.begin(2)
        store.commit({})
    content = disk.files[volumes[0].path / "job" / "data.bin"]
    content[64 * 1024 + 20] ^= 1  # generation 2 lies in copy 0
    with TensorStore.open(volumes, name="job", open_volume=disk.open) as store:
        assert store.generation == 1


def test_a_lost_record_write_is_found_at_open(
    volumes: list[VolumeConfig], disk: FaultyDisk, slot: HostSlot
) -> None:
    path = volumes[0].path / "job" / "data.bin"
    with _store_with_one_commit(volumes, disk, slot) as store:
        _second_step(store, slot)
        store.begin(3)
        before = bytes(disk.files[path][FIRST_EXTENT:])
        write_all(store, slot, 3)
        disk.files[path][FIRST_EXTENT:] = before  # the drive said yes and wrote nothing
        fresh = disk.files[path]
        store.commit({})
    assert disk.files[path] is fresh
    with pytest.raises(Corrupt, match="layers.0"):
        TensorStore.open(volumes, name="job", open_volume=disk.open)
