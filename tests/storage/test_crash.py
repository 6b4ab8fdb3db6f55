"""After a crash at any moment the store holds, whole, the last commit or the one in flight."""

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fakes import CrashDisk
from headrace.storage import (
    HostSlot,
    NotCommitted,
    RecordSpec,
    TensorStore,
    VolumeConfig,
    fall_back,
    find_commits,
)
from store_cases import content_of, expected, fill, payload, small_records, volumes_in

NUM_COMMITS = 12
NUM_RECORDS = 10
KEPT = (2, 3, 7)


def _contents(records: Sequence[RecordSpec], slot: HostSlot) -> list[dict[str, bytes]]:
    """Payload by record name, of each value from 0 to NUM_COMMITS."""
    values = []
    for value in range(NUM_COMMITS + 1):
        content = {}
        for record in records:
            fill(slot, record, value)
            content[record.name] = payload(slot, record)
        values.append(content)
    return values


def _run_workload(
    store: TensorStore, disk: CrashDisk, slot: HostSlot
) -> list[dict[str, int] | None]:
    """Commit random parts of the records; which value each record has after commit k."""
    chance = random.Random(1)
    records = list(store.records.values())
    states: list[dict[str, int] | None] = [None]
    for commit in range(1, NUM_COMMITS + 1):
        chosen = [one for one in records if commit == 1 or chance.random() < 0.6]
        store.begin(commit)
        if commit % 4 == 0:  # an attempt that is given up leaves bytes behind
            _write(store, slot, chosen[:2], 0)
            store.abort()
            store.begin(commit)
        _write(store, slot, chosen, commit)
        states.append({**(states[-1] or {}), **{one.name: commit for one in chosen}})
        store.commit({"commit": commit})
        disk.mark(commit)
        if commit in KEPT:
            _keep(store, commit)
            disk.mark(commit)
    return states


def _keep(store: TensorStore, commit: int) -> None:
    """Keep a commit, in place of the one kept before."""
    for kept in [one.generation for one in store.commits() if one.kept]:
        store.release(kept)
    store.keep(commit)


def _write(store: TensorStore, slot: HostSlot, records: Sequence[RecordSpec], value: int) -> None:
    for record in records:
        fill(slot, record, value)
        store.write_from(record.name, slot).result()


def test_every_power_loss_leaves_a_whole_commit(tmp_path: Path, slot: HostSlot) -> None:
    volumes = volumes_in(tmp_path, 2)
    records = small_records(NUM_RECORDS, num_elements=3000)
    contents = _contents(records, slot)
    disk = CrashDisk()
    with TensorStore.create(
        volumes,
        records,
        name="job",
        reserve_bytes=0,
        stripe_bytes=8192,
        keep_generations=1,
        open_volume=disk.open,
    ) as store:
        disk.mark(0)
        states = _run_workload(store, disk, slot)
    num_points = 0
    seen, kept_seen = set(), set()
    for point in disk.crash_points(("dropped", "torn")):
        if point.mark is None:
            continue  # creation: the manifest is not there yet, so neither is the store
        num_points += 1
        disk.files = point.files
        found, readable = _reopen(volumes, disk, slot)
        assert found in (point.mark, point.mark + 1), point.label  # type: ignore[operator]
        for generation, content in readable.items():
            state = states[generation] or {}
            wanted = {name: contents[value][name] for name, value in state.items()}
            assert content == wanted, f"{point.label}: commit {generation}"
            if generation != found:
                kept_seen.add(generation)
        seen.add(found)
    assert seen == set(range(NUM_COMMITS + 1))
    assert kept_seen == set(KEPT)
    assert num_points > 500
    print(f"{num_points} crash points")


def _reopen(
    volumes: Sequence[VolumeConfig], disk: CrashDisk, slot: HostSlot
) -> tuple[int, dict[int, dict[str, bytes]]]:
    """The number of the commit found, 0 for none, and what every commit that the store offers has,
    live or kept, by its number."""
    content: dict[int, dict[str, bytes]] = {}
    try:
        store = TensorStore.open(volumes, name="job", read_only=True, open_volume=disk.open)
    except NotCommitted:
        return 0, content
    with store:
        assert store.metadata == {"commit": store.generation}
        for commit in store.commits():
            found = content.setdefault(commit.generation, {})
            for name, record in store.records.items():
                store.read_into(name, slot, generation=commit.generation).result()
                found[name] = payload(slot, record)
        return store.generation, content


def test_work_goes_on_after_a_power_loss(tmp_path: Path, slot: HostSlot) -> None:
    volumes = volumes_in(tmp_path)
    disk = CrashDisk()
    with TensorStore.create(
        volumes, small_records(2), name="job", reserve_bytes=0, open_volume=disk.open
    ) as store:
        for value in (1, 2):
            store.begin(value)
            _write(store, slot, small_records(2), value)
            store.commit({})
            disk.mark(value)
    torn = [point for point in disk.crash_points(("torn",)) if point.mark == 1]
    for point in torn:
        disk.files = point.files
        disk.log.clear()
        with TensorStore.open(volumes, name="job", open_volume=disk.open) as store:
            generation = store.generation
            store.begin(9)
            _write(store, slot, small_records(2), 9)
            assert store.commit({}).generation == generation + 1
        with TensorStore.open(volumes, name="job", open_volume=disk.open) as store:
            fill(slot, small_records(1)[0], 9)
            wanted = payload(slot, small_records(1)[0])
            assert content_of(store, slot)["layers.0"] == wanted


def test_a_killed_process_leaves_its_last_commit(tmp_path: Path, slot: HostSlot) -> None:
    volumes = volumes_in(tmp_path)
    with TensorStore.create(volumes, small_records(4), name="job", reserve_bytes=0) as store:
        store.begin(0)
        _write(store, slot, small_records(4), 0)
        store.commit({"step": 0})
    program = Path(__file__).parents[1] / "killed_writer.py"
    run = subprocess.run(
        [sys.executable, str(program), str(volumes[0].path), "20", "5"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    rounds = [line.split() for line in run.stdout.splitlines()]
    assert len(rounds) == 20
    for returned, found, state in rounds:
        assert state == "whole"
        assert int(found) in (int(returned), int(returned) + 1)


@pytest.mark.parametrize("target", [1, 2], ids=["kept", "before"])
def test_a_power_loss_while_falling_back_leaves_the_commit_or_its_target(
    tmp_path: Path, slot: HostSlot, target: int
) -> None:
    volumes = volumes_in(tmp_path)
    disk = CrashDisk()
    with TensorStore.create(
        volumes, small_records(2), name="job", reserve_bytes=0, keep_generations=1,
        open_volume=disk.open,
    ) as store:  # fmt: skip
        for value in (1, 2, 3):
            store.begin(value)
            _write(store, slot, small_records(2), value)
            store.commit({})
            if value == 1:
                store.keep(1)
    disk.mark("falling back")
    assert fall_back(volumes, name="job", generation=target, open_volume=disk.open) == 4
    disk.mark("done")
    points = [one for one in disk.crash_points(("dropped", "torn")) if one.mark is not None]
    assert len(points) > 4
    for point in points:
        disk.files = point.files
        with TensorStore.open(volumes, name="job", read_only=True, open_volume=disk.open) as store:
            value = {3: 3, target: target, 4: target}[store.generation]
            assert content_of(store, slot) == expected(small_records(2), slot, value), point.label
            assert point.mark != "done" or store.generation == 4
        report = find_commits(volumes, name="job", content=True, open_volume=disk.open)
        whole = {one.step for one in report.commits if not one.problems}
        assert target in whole, point.label
