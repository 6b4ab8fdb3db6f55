"""What the store promises to those who use it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fakes import MemoryDisk, SlowVolume
from headrace.storage import (
    Corrupt,
    HostArena,
    HostSlot,
    Incompatible,
    Misuse,
    NotCommitted,
    RecordSpec,
    StoreError,
    TensorSpec,
    TensorStore,
    VolumeConfig,
    VolumeStatus,
)
from store_cases import content_of, expected, fill, payload, small_records, volumes_in, write_all


@pytest.fixture
def volumes(tmp_path: Path) -> list[VolumeConfig]:
    return volumes_in(tmp_path)


@pytest.fixture
def store(volumes: list[VolumeConfig]) -> Iterator[TensorStore]:
    with TensorStore.create(volumes, small_records(3), name="job", reserve_bytes=0) as store:
        yield store


def test_committed_records_come_back_after_reopening(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    store.begin(7)
    write_all(store, slot, 1)
    info = store.commit({"cursor": [1, 2], "note": "Zähler"})
    store.close()
    with TensorStore.open(volumes, name="job") as again:
        assert content_of(again, slot) == expected(small_records(3), slot, 1)
        assert again.metadata == {"cursor": [1, 2], "note": "Zähler"}
        assert (again.generation, again.step) == (info.generation, info.step) == (1, 7)


def test_description_and_records_are_kept_for_life(
    volumes: list[VolumeConfig], slot: HostSlot
) -> None:
    scalar = TensorSpec(name="a", dtype="uint8", shape=())
    records = [*small_records(2), RecordSpec(name="tables", tensors=(scalar,), mutable=False)]
    with TensorStore.create(
        volumes, records, name="job", description={"model": {"layers": 2}}, reserve_bytes=0
    ) as store:
        store.begin(0)
        store.commit({})
    with TensorStore.open(volumes, name="job", read_only=True) as store:
        assert store.description == {"model": {"layers": 2}}
        assert list(store.records.values()) == records


def test_uncommitted_writes_are_read_back_but_lost_at_close(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    store.begin(1)
    write_all(store, slot, 1)
    store.commit({})
    store.begin(2)
    write_all(store, slot, 2)
    assert content_of(store, slot) == expected(small_records(3), slot, 2)
    assert content_of(store, slot, committed=True) == expected(small_records(3), slot, 1)
    store.close()
    with TensorStore.open(volumes, name="job") as again:
        assert content_of(again, slot) == expected(small_records(3), slot, 1)


def test_several_steps_may_share_one_commit(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    store.begin(0)
    write_all(store, slot, 0)
    store.commit({})
    for step in (1, 2, 3):
        store.begin(step)
        write_all(store, slot, step)
    assert content_of(store, slot, committed=True) == expected(small_records(3), slot, 0)
    assert store.commit({}).generation == 2
    store.close()
    with TensorStore.open(volumes, name="job") as again:
        assert again.step == 3
        assert content_of(again, slot) == expected(small_records(3), slot, 3)


def test_records_left_out_of_a_commit_keep_their_last_version(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    records = small_records(3)
    store.begin(0)
    write_all(store, slot, 0)
    store.commit({})
    store.begin(1)
    fill(slot, records[1], 1)
    store.write_from("layers.1", slot).result()
    assert store.commit({}).num_records == 1
    store.close()
    wanted = expected(records, slot, 0)
    wanted["layers.1"] = expected(records, slot, 1)["layers.1"]
    with TensorStore.open(volumes, name="job") as again:
        assert content_of(again, slot) == wanted


def test_abort_returns_to_the_last_commit(store: TensorStore, slot: HostSlot) -> None:
    store.begin(1)
    write_all(store, slot, 1)
    store.commit({"k": 1})
    store.begin(2)
    write_all(store, slot, 2)
    store.abort()
    assert content_of(store, slot) == expected(small_records(3), slot, 1)
    store.begin(2)
    write_all(store, slot, 3)
    store.commit({"k": 2})
    assert content_of(store, slot) == expected(small_records(3), slot, 3)


def test_named_tensors_alone_are_read_to_their_place(
    store: TensorStore, slot: HostSlot, other_slot: HostSlot
) -> None:
    record = small_records(3)[0]
    store.begin(1)
    write_all(store, slot, 1)
    store.commit({})
    fill(slot, record, 1)
    other_slot.tensor(torch.uint8, other_slot.nbytes).zero_()
    before = store.stats().links["nvme_read"]
    store.read_into("layers.0", other_slot, tensors=["exp_avg"]).result()
    moved = store.stats().links["nvme_read"] - before
    assert payload(other_slot, record, ["exp_avg"]) == payload(slot, record, ["exp_avg"])
    assert not any(payload(other_slot, record, ["weight_hi"]))
    assert moved.payload_bytes == record.tensor("exp_avg").payload_bytes
    assert moved.payload_bytes + moved.padding_bytes == record.tensor("exp_avg").padded_bytes


def test_a_read_sees_the_write_submitted_before_it(
    volumes: list[VolumeConfig], slot: HostSlot, other_slot: HostSlot
) -> None:
    disk = MemoryDisk()

    def open_slowly(status: VolumeStatus, path: Path, read_only: bool) -> SlowVolume:
        return SlowVolume(disk.open(status, path, read_only), 0.02)

    record = small_records(1)[0]
    with TensorStore.create(
        volumes, [record], name="job", reserve_bytes=0, open_volume=open_slowly
    ) as store:
        store.begin(0)
        for value in range(4):
            fill(slot, record, value)
            write = store.write_from("layers.0", slot)
            read = store.read_into("layers.0", other_slot)
            read.result()
            assert write.done()
            assert payload(other_slot, record) == payload(slot, record)


def test_a_write_waits_for_the_reads_of_its_extent(
    volumes: list[VolumeConfig], slot: HostSlot, other_slot: HostSlot
) -> None:
    disk = MemoryDisk()

    def open_slowly(status: VolumeStatus, path: Path, read_only: bool) -> SlowVolume:
        return SlowVolume(disk.open(status, path, read_only), 0.02)

    record = small_records(1)[0]
    with TensorStore.create(
        volumes, [record], name="job", reserve_bytes=0, open_volume=open_slowly
    ) as store:
        store.begin(0)
        fill(slot, record, 1)
        store.write_from("layers.0", slot).result()
        wanted = payload(slot, record)
        fill(slot, record, 2)
        read = store.read_into("layers.0", other_slot)
        write = store.write_from("layers.0", slot)
        write.result()
        assert read.done()
        read.result()
        assert payload(other_slot, record) == wanted


def test_counters_say_what_must_move(store: TensorStore, slot: HostSlot) -> None:
    store.begin(1)
    write_all(store, slot, 1)
    content_of(store, slot)
    stats = store.stats()
    wanted = sum(record.payload_bytes for record in store.records.values())
    assert stats.links["nvme_write"].payload_bytes == wanted
    assert stats.links["nvme_read"].payload_bytes == wanted
    assert stats.links["nvme_read"].busy_seconds > 0
    assert stats.links["nvme_read"].operations == 3
    [of_volume] = stats.per_volume.values()
    assert of_volume["nvme_read"].payload_bytes == wanted


def test_bytes_written_are_counted_over_the_life_of_the_store(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    store.begin(1)
    write_all(store, slot, 1)
    store.commit({})
    [before] = store.status().volumes
    store.close()
    with TensorStore.open(volumes, name="job") as again:
        again.begin(2)
        write_all(again, slot, 2)
        again.commit({})
        [after] = again.status().to_dict()["volumes"]
    num_records_bytes = sum(record.padded_bytes for record in small_records(3))
    assert before.written_bytes > num_records_bytes
    assert after["written_bytes"] > 2 * num_records_bytes


def test_a_record_never_written_cannot_be_read(store: TensorStore, slot: HostSlot) -> None:
    with pytest.raises(NotCommitted, match="layers.1"):
        store.read_into("layers.1", slot)
    store.begin(1)
    store.write_from("layers.1", slot).result()
    with pytest.raises(NotCommitted, match="layers.1"):
        store.read_into("layers.1", slot, committed=True)


def test_a_store_without_a_commit_is_not_opened(
    volumes: list[VolumeConfig], store: TensorStore
) -> None:
    store.close()
    assert TensorStore.exists(volumes, name="job")
    with pytest.raises(NotCommitted, match="job"):
        TensorStore.open(volumes, name="job")


def test_read_only_records_are_written_before_their_first_commit_alone(
    volumes: list[VolumeConfig], slot: HostSlot
) -> None:
    tensors = (TensorSpec(name="a", dtype="uint8", shape=(10,)),)
    records = [RecordSpec(name="fixed", tensors=tensors, mutable=False)]
    with TensorStore.create(volumes, records, name="job", reserve_bytes=0) as store:
        store.begin(0)
        store.write_from("fixed", slot).result()
        store.write_from("fixed", slot).result()
        store.commit({})
        store.begin(1)
        with pytest.raises(Misuse, match="fixed"):
            store.write_from("fixed", slot)


def test_writes_outside_begin_and_commit_are_refused(store: TensorStore, slot: HostSlot) -> None:
    with pytest.raises(Misuse, match="begin"):
        store.write_from("layers.0", slot)
    with pytest.raises(Misuse, match="begin"):
        store.commit({})
    store.begin(1)
    store.commit({})
    with pytest.raises(Misuse, match="begin"):
        store.write_from("layers.0", slot)


def test_a_slot_that_is_too_small_is_refused(store: TensorStore, arena: HostArena) -> None:
    store.begin(1)
    with pytest.raises(Misuse, match="20480"):
        store.write_from("layers.0", arena.carve(4096))
    with pytest.raises(KeyError):
        store.read_into("layers.9", arena.carve(4096))


def test_metadata_above_the_limit_is_refused(store: TensorStore) -> None:
    store.begin(1)
    store.commit({"text": "x" * 65_000})
    assert len(store.metadata["text"]) == 65_000
    store.begin(2)
    with pytest.raises(ValueError, match="65536"):
        store.commit({"text": "x" * 65_600})


def test_a_read_only_store_is_not_written(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    store.begin(1)
    write_all(store, slot, 1)
    store.commit({})
    store.close()
    with (
        TensorStore.open(volumes, name="job", read_only=True) as one,
        TensorStore.open(volumes, name="job", read_only=True) as two,
    ):
        assert content_of(one, slot) == content_of(two, slot)
        with pytest.raises(Misuse, match="read-only"):
            one.begin(2)


def test_damage_on_the_drive_is_found_when_read(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    store.begin(1)
    write_all(store, slot, 1)
    store.commit({})
    fill(slot, small_records(3)[1], 1)
    wanted = payload(slot, small_records(3)[1], ["exp_avg"])
    store.close()
    _damage(volumes[0].path / "job" / "data.bin", wanted[:64])
    with TensorStore.open(volumes, name="job") as again:
        again.read_into("layers.0", slot).result()
        again.read_into("layers.1", slot, tensors=["weight_hi"]).result()
        with pytest.raises(Corrupt, match="'layers.1', tensor 'exp_avg'"):
            again.read_into("layers.1", slot).result()
        [problem] = again.verify()
        assert "layers.1" in problem and "exp_avg" in problem


def test_verify_of_a_sound_store_reports_progress_and_no_problem(
    store: TensorStore, slot: HostSlot
) -> None:
    store.begin(1)
    write_all(store, slot, 1)
    store.commit({})
    seen: list[tuple[int, int]] = []
    assert store.verify(lambda done, total: seen.append((done, total))) == []
    size = small_records(1)[0].padded_bytes
    assert seen == [(size, 3 * size), (2 * size, 3 * size), (3 * size, 3 * size)]


def test_a_foreign_file_and_another_version_are_named(
    volumes: list[VolumeConfig], store: TensorStore
) -> None:
    store.begin(1)
    store.commit({})
    store.close()
    data = volumes[0].path / "job" / "data.bin"
    _overwrite(data, 8, (1).to_bytes(4, "little"))
    with pytest.raises(Incompatible, match="version 1; this Headrace reads version 2"):
        TensorStore.open(volumes, name="job")
    _overwrite(data, 0, b"somebody")
    with pytest.raises(Incompatible, match="not a Headrace store"):
        TensorStore.open(volumes, name="job")


def test_a_manifest_of_another_version_or_changed_by_hand_is_refused(
    volumes: list[VolumeConfig], store: TensorStore
) -> None:
    store.begin(1)
    store.commit({})
    store.close()
    path = volumes[0].path / "job" / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"version": 2', '"version": 9'))
    with pytest.raises(Incompatible, match="version 9; this Headrace reads version 2"):
        TensorStore.open(volumes, name="job")
    path.write_text(text.replace("layers.0", "layers.7"))
    with pytest.raises(Incompatible, match="manifest was changed"):
        TensorStore.open(volumes, name="job")
    path.write_text("{")
    with pytest.raises(Incompatible, match="not a Headrace manifest"):
        TensorStore.open(volumes, name="job")


def test_opening_what_is_not_there_says_where_it_looked(volumes: list[VolumeConfig]) -> None:
    assert not TensorStore.exists(volumes, name="job")
    with pytest.raises(StoreError, match=str(volumes[0].path / "job")):
        TensorStore.open(volumes, name="job")


def test_removing_is_complete_and_may_be_repeated(
    volumes: list[VolumeConfig], store: TensorStore
) -> None:
    store.close()
    TensorStore.remove(volumes, name="job")
    TensorStore.remove(volumes, name="job")
    assert list(volumes[0].path.iterdir()) == []


def test_creating_twice_is_refused_and_harms_nothing(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    store.begin(1)
    write_all(store, slot, 1)
    store.commit({})
    store.close()
    with pytest.raises(Misuse, match="exists"):
        TensorStore.create(volumes, small_records(1), name="job", reserve_bytes=0)
    with TensorStore.open(volumes, name="job") as again:
        assert content_of(again, slot) == expected(small_records(3), slot, 1)


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", ".."])
def test_names_that_leave_the_volume_are_refused(volumes: list[VolumeConfig], name: str) -> None:
    with pytest.raises(ValueError, match="plain name"):
        TensorStore.create(volumes, small_records(1), name=name, reserve_bytes=0)


def test_records_are_striped_over_volumes_given_in_any_order(
    tmp_path: Path, slot: HostSlot
) -> None:
    volumes = volumes_in(tmp_path, 3)
    records = small_records(5, num_elements=9000)
    with TensorStore.create(
        volumes, records, name="job", reserve_bytes=0, stripe_bytes=8192
    ) as store:
        store.begin(1)
        write_all(store, slot, 1)
        store.commit({})
        written = [links["nvme_write"].payload_bytes for links in store.stats().per_volume.values()]
    assert min(written) > max(written) / 2
    with TensorStore.open([volumes[2], volumes[0], volumes[1]], name="job") as again:
        assert content_of(again, slot) == expected(records, slot, 1)
    with pytest.raises(Incompatible, match="3 volumes; 2 are given"):
        TensorStore.open(volumes[:2], name="job")


def test_volumes_of_different_stores_are_not_mixed(tmp_path: Path) -> None:
    a, b, c = volumes_in(tmp_path, 3)
    for pair in ([a, b], [c]):
        with TensorStore.create(pair, small_records(2), name="job", reserve_bytes=0) as store:
            store.begin(0)
            store.commit({})
    with pytest.raises(Incompatible):
        TensorStore.open([a, c], name="job")


def test_a_closed_store_refuses_and_leaves_no_future_open(
    volumes: list[VolumeConfig], slot: HostSlot
) -> None:
    disk = MemoryDisk()

    def open_slowly(status: VolumeStatus, path: Path, read_only: bool) -> SlowVolume:
        return SlowVolume(disk.open(status, path, read_only), 0.05)

    with TensorStore.create(
        volumes, small_records(9), name="job", reserve_bytes=0, open_volume=open_slowly
    ) as store:
        store.begin(1)
        futures = [store.write_from(name, slot) for name in store.records]
    assert all(future.done() for future in futures)
    with pytest.raises(StoreError, match="closed"):
        futures[-1].result()
    with pytest.raises(Misuse, match="closed"):
        store.read_into("layers.0", slot)
    assert not slot.in_use


def test_memory_volumes_hold_what_a_real_file_would(
    volumes: list[VolumeConfig], slot: HostSlot
) -> None:
    disk = MemoryDisk()
    with TensorStore.create(
        volumes, small_records(2), name="job", reserve_bytes=0, open_volume=disk.open
    ) as store:
        store.begin(1)
        write_all(store, slot, 1)
        store.commit({})
    with TensorStore.open(volumes, name="job", open_volume=disk.open) as again:
        assert content_of(again, slot) == expected(small_records(2), slot, 1)


def _damage(path: Path, needle: bytes) -> None:
    content = path.read_bytes()
    position = content.index(needle)
    _overwrite(path, position + 5, bytes([content[position + 5] ^ 1]))


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
