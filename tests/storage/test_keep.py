"""Kept commits stay readable whatever follows, cost what is said, and go away one by one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.storage import (
    Corrupt,
    HostSlot,
    Misuse,
    NoSpace,
    NotCommitted,
    TensorStore,
    VolumeConfig,
    fall_back,
    find_commits,
    plan_layout,
)
from store_cases import content_of, expected, fill, payload, small_records, volumes_in, write_all

RECORDS = small_records(3)
KEEP = 2


@pytest.fixture
def volumes(tmp_path: Path) -> list[VolumeConfig]:
    return volumes_in(tmp_path)


@pytest.fixture
def store(volumes: list[VolumeConfig]) -> Iterator[TensorStore]:
    with TensorStore.create(
        volumes, RECORDS, name="job", reserve_bytes=0, keep_generations=KEEP
    ) as store:
        yield store


def _commit(store: TensorStore, slot: HostSlot, value: int) -> int:
    store.begin(value)
    write_all(store, slot, value)
    return store.commit({"value": value}).generation


def _content_of(store: TensorStore, slot: HostSlot, generation: int) -> dict[str, bytes]:
    content = {}
    for name, record in store.records.items():
        store.read_into(name, slot, generation=generation).result()
        content[name] = payload(slot, record)
    return content


def test_kept_commits_stay_whole_while_others_follow_and_after_reopening(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    kept = []
    for value in range(1, 9):
        generation = _commit(store, slot, value)
        if value in (2, 5):
            store.keep(generation)
            kept.append((generation, value))
    for generation, value in kept:
        assert _content_of(store, slot, generation) == expected(RECORDS, slot, value)
    store.close()
    with TensorStore.open(volumes, name="job") as again:
        for generation, value in kept:
            assert _content_of(again, slot, generation) == expected(RECORDS, slot, value)
        assert content_of(again, slot) == expected(RECORDS, slot, 8)
        assert again.verify() == []


def test_releasing_one_commit_touches_no_other(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    for value in (1, 2, 3):
        generation = _commit(store, slot, value)
        if value < 3:
            store.keep(generation)
    store.release(1)
    for value in (4, 5, 6):
        _commit(store, slot, value)
    assert _content_of(store, slot, 2) == expected(RECORDS, slot, 2)
    with pytest.raises(NotCommitted, match="there are: 6, 2"):
        store.read_into("layers.0", slot, generation=1)
    store.close()
    with TensorStore.open(volumes, name="job") as again:
        assert [(one.generation, one.kept, one.live) for one in again.commits()] == [
            (2, True, False), (6, False, True)]  # fmt: skip


def test_a_commit_costs_what_it_is_said_to_cost(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    layout = plan_layout(RECORDS, volumes, keep_generations=KEEP)
    without = plan_layout(RECORDS, volumes)
    grown = layout.total_bytes - without.total_bytes - 2 * (layout.body_bytes - without.body_bytes)
    assert abs(grown - KEEP * layout.generation_bytes) < 128 << 10
    store.keep(_commit(store, slot, 1))
    [only] = store.commits()
    assert (only.num_bytes, only.own_bytes) == (layout.generation_bytes, layout.generation_bytes)
    store.begin(2)
    store.write_from("layers.0", slot).result()
    store.commit({})
    [old, new] = store.commits()
    assert old.own_bytes == new.own_bytes == layout.generation_bytes // 3


def test_only_as_many_are_kept_as_there_is_room_for(store: TensorStore, slot: HostSlot) -> None:
    for value in (1, 2):
        store.keep(_commit(store, slot, value))
    generation = _commit(store, slot, 3)
    with pytest.raises(Misuse, match="keep 2 commits beside the live one and keeps 1, 2"):
        store.keep(generation)
    store.release(1)
    store.keep(generation)
    store.keep(generation)
    assert [one.generation for one in store.commits() if one.kept] == [2, 3]


def test_the_last_ones_and_the_best_are_kept_in_one_flip(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    best = 1
    for value in range(1, 6):
        store.keep_only({best, _commit(store, slot, value)})
    assert [one.generation for one in store.commits() if one.kept] == [1, 5]
    for wrong, error in (({2}, NotCommitted), ({1, 5, 4}, Misuse)):
        with pytest.raises(error):
            store.keep_only(wrong)
    store.close()
    with TensorStore.open(volumes, name="job") as again:
        assert _content_of(again, slot, 1) == expected(RECORDS, slot, 1)
        again.keep_only([])
        assert [one.generation for one in again.commits()] == [5]


def test_what_is_gone_cannot_be_kept_and_what_is_not_kept_not_released(
    store: TensorStore, slot: HostSlot
) -> None:
    for value in (1, 2):
        _commit(store, slot, value)
    with pytest.raises(NotCommitted, match="commit 1 is not there any more"):
        store.keep(1)
    with pytest.raises(NotCommitted, match="commit 2 is not kept"):
        store.release(2)


def test_keeping_in_the_middle_of_a_step_leaves_the_step_alone(
    store: TensorStore, slot: HostSlot
) -> None:
    _commit(store, slot, 1)
    store.begin(2)
    fill(slot, RECORDS[0], 2)
    store.write_from("layers.0", slot).result()
    store.keep(1)
    fill(slot, RECORDS[0], 3)
    store.write_from("layers.0", slot).result()
    store.commit({})
    store.read_into("layers.0", slot).result()
    assert payload(slot, RECORDS[0]) == expected(RECORDS, slot, 3)["layers.0"]
    assert _content_of(store, slot, 1) == expected(RECORDS, slot, 1)


def test_room_for_kept_commits_is_asked_for_at_creation(tmp_path: Path) -> None:
    [volume] = volumes_in(tmp_path)
    needed = plan_layout(RECORDS, [volume]).total_bytes
    limited = [VolumeConfig(path=volume.path, limit_bytes=needed)]
    TensorStore.create(limited, RECORDS, name="plain", reserve_bytes=0).close()
    TensorStore.remove(limited, name="plain")
    with pytest.raises(NoSpace):
        TensorStore.create(limited, RECORDS, name="kept", reserve_bytes=0, keep_generations=1)
    assert list(volume.path.iterdir()) == []


def _damage(volumes: list[VolumeConfig], found: bytes) -> None:
    """Flip a bit behind the only place where `found` is on the first volume."""
    path = volumes[0].path / "job" / "data.bin"
    content = bytearray(path.read_bytes())
    assert content.count(found) == 1
    content[content.index(found) + len(found) - 1] ^= 1
    path.write_bytes(content)


def test_damage_in_a_kept_commit_leaves_the_live_one_usable(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    store.keep(_commit(store, slot, 1))
    _commit(store, slot, 2)
    store.close()
    fill(slot, RECORDS[1], 1)
    _damage(volumes, payload(slot, RECORDS[1])[:2000])
    with TensorStore.open(volumes, name="job") as again:
        assert content_of(again, slot) == expected(RECORDS, slot, 2)
        [problem] = again.verify()
        assert "layers.1" in problem
        with pytest.raises(Corrupt, match=r"layers\.1"):
            again.read_into("layers.1", slot, generation=1).result()
        again.release(1)
        assert again.verify() == []


@pytest.mark.parametrize("part", ["trailer", "content", "body"])
def test_a_damaged_live_commit_can_be_left_for_a_kept_one(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot, part: str
) -> None:
    store.keep(_commit(store, slot, 1))
    for value in (2, 3):
        _commit(store, slot, value)
    store.close()
    _damage_newest(volumes, slot, part)
    report = find_commits(volumes, name="job", content=True)
    whole = [one.generation for one in report.commits if not one.problems]
    assert 1 in whole and 3 not in whole
    if part == "body":
        assert "body of commit 3" in report.problems[0]
    else:
        with pytest.raises(Corrupt):
            fall_back(volumes, name="job", generation=3)
    assert fall_back(volumes, name="job", generation=1) == 4
    with TensorStore.open(volumes, name="job") as again:
        assert (again.generation, again.step, again.metadata) == (4, 1, {"value": 1})
        assert content_of(again, slot) == expected(RECORDS, slot, 1)
        assert [one.generation for one in again.commits() if one.kept] == [1]
        for value in (5, 6):
            _commit(again, slot, value)
        assert content_of(again, slot) == expected(RECORDS, slot, 6)
        assert _content_of(again, slot, 1) == expected(RECORDS, slot, 1)
        assert again.verify() == []


def _damage_newest(volumes: list[VolumeConfig], slot: HostSlot, part: str) -> None:
    """Spoil commit 3: the trailer of its record layers.0, its content, or the commit's body."""
    path = volumes[0].path / "job" / "data.bin"
    content = bytearray(path.read_bytes())
    fill(slot, RECORDS[0], 3)
    at = content.index(payload(slot, RECORDS[0])[:2000])
    if part == "content":
        content[at + 5] ^= 1
    elif part == "trailer":
        content[at + RECORDS[0].padded_bytes + 100] ^= 1
    else:
        content[content.index(b'"value":3')] ^= 1
    path.write_bytes(content)


def test_the_commit_before_is_offered_until_it_is_written_over(
    volumes: list[VolumeConfig], slot: HostSlot
) -> None:
    with TensorStore.create(volumes, RECORDS, name="job", reserve_bytes=0) as store:
        for value in (1, 2):
            _commit(store, slot, value)
    [live, before] = find_commits(volumes, name="job", content=True).commits
    assert (live.generation, live.live, live.problems) == (2, True, ())
    assert (before.generation, before.live, before.kept, before.problems) == (1, False, False, ())
    with TensorStore.open(volumes, name="job") as again:
        again.begin(3)
        again.write_from("layers.2", slot).result()
    [_, before] = find_commits(volumes, name="job", content=True).commits
    assert len(before.problems) == 1 and "layers.2" in before.problems[0]
    with pytest.raises(Corrupt, match="commit 1 is not whole"):
        fall_back(volumes, name="job", generation=1)


def test_falling_back_to_what_is_not_there_names_what_is(
    volumes: list[VolumeConfig], store: TensorStore, slot: HostSlot
) -> None:
    _commit(store, slot, 1)
    store.close()
    with pytest.raises(NotCommitted, match="no commit 7 in the store; there are: 1"):
        fall_back(volumes, name="job", generation=7)
