"""A store is made whole or not at all, where there is room, and belongs to one process."""

import ctypes
import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import FaultyDisk
from headrace.storage import (
    IoFailed,
    Locked,
    NoSpace,
    StoreError,
    TensorStore,
    VolumeConfig,
    filesystem,
    plan_layout,
)
from store_cases import small_records, volumes_in


@pytest.fixture
def volumes(tmp_path: Path) -> list[VolumeConfig]:
    return volumes_in(tmp_path, 2)


def _nothing_is_left(volumes: list[VolumeConfig]) -> bool:
    return not any(list(volume.path.iterdir()) for volume in volumes)


def test_a_store_that_does_not_fit_is_refused_with_the_numbers(
    volumes: list[VolumeConfig],
) -> None:
    most = filesystem.total_bytes(volumes[0].path)
    reserve = -(-most // 2**20)
    with pytest.raises(NoSpace, match=rf"{reserve} MiB kept in reserve, but only \d+ MiB are"):
        TensorStore.create(volumes, small_records(2), name="job", reserve_bytes=most)
    assert _nothing_is_left(volumes)


def test_the_limit_of_a_volume_counts_all_its_stores(volumes: list[VolumeConfig]) -> None:
    [one, _] = volumes
    need = plan_layout(small_records(2), [one]).total_bytes
    limited = [replace(one, limit_bytes=2 * need - 1)]
    TensorStore.create(limited, small_records(2), name="first", reserve_bytes=0).close()
    with pytest.raises(NoSpace, match=rf"{need} bytes are needed and {need} bytes are taken"):
        TensorStore.create(limited, small_records(2), name="second", reserve_bytes=0)
    assert [path.name for path in one.path.iterdir()] == ["first"]


def test_the_reserved_bytes_are_really_there(volumes: list[VolumeConfig]) -> None:
    with TensorStore.create(volumes, small_records(9), name="job", reserve_bytes=0):
        layout = plan_layout(small_records(9), volumes)
        for volume, wanted in zip(volumes, layout.file_bytes, strict=True):
            stat = (volume.path / "job" / "data.bin").stat()
            assert stat.st_size == wanted
            assert stat.st_blocks * 512 >= wanted


@pytest.mark.parametrize(
    ("code", "raised"), [(errno.ENOSPC, NoSpace), (errno.EDQUOT, NoSpace), (errno.EIO, IoFailed)]
)
def test_a_reservation_that_fails_midway_cleans_up(
    volumes: list[VolumeConfig],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    raised: type[StoreError],
) -> None:
    calls = []

    class Libc:
        """The second reservation gets part of what it wants, and keeps it."""

        def fallocate64(self, fd: int, mode: int, offset: object, length: ctypes.c_int64) -> int:
            calls.append(fd)
            os.truncate(fd, length.value // 2)
            if len(calls) == 2:
                ctypes.set_errno(code)
                return -1
            return 0

    monkeypatch.setattr(filesystem, "_libc", Libc())
    monkeypatch.setattr("headrace.storage.volume.direct_alignment", lambda path: None)
    monkeypatch.setattr("headrace.storage.volume.filesystem_name", lambda path: "ext4")
    with pytest.raises(raised):
        TensorStore.create(volumes, small_records(2), name="job", reserve_bytes=0)
    assert len(calls) == 2
    assert _nothing_is_left(volumes)


def test_a_file_that_was_reserved_in_part_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Libc:
        def fallocate64(self, *_: object) -> int:
            ctypes.set_errno(errno.ENOSPC)
            return -1

    monkeypatch.setattr(filesystem, "_libc", Libc())
    with pytest.raises(NoSpace, match="reserving 100000 bytes"):
        filesystem.reserve_file(tmp_path / "data.bin", 100_000)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_fallocate_is_filled_by_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Libc:
        def fallocate64(self, *_: object) -> int:
            ctypes.set_errno(errno.EOPNOTSUPP)
            return -1

    monkeypatch.setattr(filesystem, "_libc", Libc())
    filesystem.reserve_file(tmp_path / "data.bin", 100_000)
    stat = (tmp_path / "data.bin").stat()
    assert stat.st_size == 100_000 and stat.st_blocks * 512 >= 100_000


def test_a_header_that_cannot_be_written_leaves_nothing(volumes: list[VolumeConfig]) -> None:
    for operation in range(4):
        disk = FaultyDisk({operation: "eio"})
        with pytest.raises(IoFailed):
            TensorStore.create(
                volumes, small_records(2), name="job", reserve_bytes=0, open_volume=disk.open
            )
        assert _nothing_is_left(volumes)


def test_what_a_killed_creation_left_is_replaced(volumes: list[VolumeConfig]) -> None:
    for volume in volumes:
        (volume.path / "job").mkdir()
        (volume.path / "job" / "data.bin").write_bytes(b"half")
    (volumes[1].path / "job" / "manifest.json").write_bytes(b"{}")
    assert not TensorStore.exists(volumes, name="job")
    TensorStore.create(volumes, small_records(2), name="job", reserve_bytes=0).close()
    assert TensorStore.exists(volumes, name="job")


def test_files_of_others_are_left_alone_and_named(volumes: list[VolumeConfig]) -> None:
    (volumes[0].path / "job").mkdir()
    (volumes[0].path / "job" / "thesis.txt").write_text("precious")
    with pytest.raises(StoreError, match="not of a store .thesis.txt.; move it away"):
        TensorStore.create(volumes, small_records(1), name="job", reserve_bytes=0)
    assert (volumes[0].path / "job" / "thesis.txt").read_text() == "precious"


def test_no_volume_holds_no_store() -> None:
    assert not TensorStore.exists([], name="job")
    with pytest.raises(StoreError, match="at least one volume"):
        TensorStore.open([], name="job")


def test_a_second_opener_hears_who_holds_the_store(volumes: list[VolumeConfig]) -> None:
    with TensorStore.create(volumes, small_records(2), name="job", reserve_bytes=0) as store:
        store.begin(0)
        store.commit({})
        for attempt in (TensorStore.open, TensorStore.remove):
            with pytest.raises(Locked, match=f"in use by process {os.getpid()}"):
                attempt(volumes, name="job")
    TensorStore.open(volumes, name="job").close()


def test_the_lock_of_a_dead_process_does_not_block(volumes: list[VolumeConfig]) -> None:
    with TensorStore.create(volumes[:1], small_records(2), name="job", reserve_bytes=0) as store:
        store.begin(0)
        store.commit({})
    path = volumes[0].path / "job" / "lock"
    code = (
        "import fcntl, os, signal, sys\n"
        f"fd = os.open({str(path)!r}, os.O_RDWR)\n"
        "fcntl.flock(fd, fcntl.LOCK_EX)\n"
        "os.pwrite(fd, str(os.getpid()).encode(), 0)\n"
        "print('held', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(Locked, match=f"in use by process {child.pid}"):
            TensorStore.open(volumes[:1], name="job")
        child.kill()
    TensorStore.open(volumes[:1], name="job").close()


def test_a_volume_given_twice_is_refused(volumes: list[VolumeConfig]) -> None:
    with pytest.raises(StoreError, match="no directory twice"):
        TensorStore.create([volumes[0]] * 2, small_records(1), name="job", reserve_bytes=0)
