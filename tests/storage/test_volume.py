"""Real files: both roads move the same bytes, errors have names, the probe tells the truth."""

import errno
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.storage import (
    IoFailed,
    RecordSpec,
    StoreError,
    TensorSpec,
    TensorStore,
    VolumeConfig,
    probe_volume,
)
from headrace.storage.filesystem import filesystem_name
from headrace.storage.volume import FileVolume, page_buffer
from store_cases import volumes_in

FILE_BYTES = 1 << 20


def _has_direct_io(path: Path) -> bool:
    return probe_volume(VolumeConfig(path=path)).active == "direct"


@pytest.fixture(params=["direct", "buffered"])
def volume(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileVolume]:
    """A file of 1 MiB, by each road that this file system has."""
    direct = request.param == "direct"
    if direct and not _has_direct_io(tmp_path):
        pytest.skip(f"no direct I/O in {tmp_path}")
    (tmp_path / "data.bin").write_bytes(bytes(FILE_BYTES))
    volume = FileVolume(tmp_path / "data.bin", direct=direct)
    yield volume
    volume.close()


def test_bytes_written_come_back(volume: FileVolume) -> None:
    source, target = memoryview(page_buffer(65536)), memoryview(page_buffer(65536))
    source[:] = random.Random(1).randbytes(65536)
    volume.write(8192, source)
    volume.sync()
    volume.write(0, source[:4096], durable=True)
    volume.read(8192, target)
    assert target == source
    volume.read(0, target[:4096])
    assert target[:4096] == source[:4096]


def test_a_read_past_the_end_says_how_far_it_came(volume: FileVolume, tmp_path: Path) -> None:
    target = memoryview(page_buffer(8192))
    with pytest.raises(IoFailed) as caught:
        volume.read(FILE_BYTES - 4096, target)
    assert caught.value.volume == str(tmp_path)
    assert (caught.value.offset, caught.value.wanted, caught.value.got) == (
        FILE_BYTES - 4096, 8192, 4096)  # fmt: skip


def test_short_calls_are_continued(volume: FileVolume, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(call: Callable[..., int]) -> Callable[..., int]:
        def short(fd: int, views: list[memoryview], offset: int, flags: int) -> int:
            return call(fd, [views[0][:4096]], offset, flags)

        return short

    monkeypatch.setattr(os, "preadv", cut(os.preadv))
    monkeypatch.setattr(os, "pwritev", cut(os.pwritev))
    source, target = memoryview(page_buffer(65536)), memoryview(page_buffer(65536))
    source[:] = random.Random(2).randbytes(65536)
    volume.write(4096, source)
    volume.read(4096, target)
    assert target == source


def test_the_page_cache_is_bypassed_or_kept_small(volume: FileVolume, tmp_path: Path) -> None:
    source = memoryview(page_buffer(FILE_BYTES))
    volume.write(0, source)
    volume.sync()
    volume.read(0, source)
    volume.sync()
    with open("/proc/self/io") as file:
        before = _read_bytes(file.read())
    volume.read(0, source)
    with open("/proc/self/io") as file:
        after = _read_bytes(file.read())
    if filesystem_name(tmp_path) == "tmpfs":
        pytest.skip("tmpfs is the page cache")
    assert after - before >= FILE_BYTES, "the second read came from the page cache"


def _read_bytes(text: str) -> int:
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("read_bytes")))


def test_the_probe_names_road_and_reason(tmp_path: Path) -> None:
    status = probe_volume(VolumeConfig(path=tmp_path))
    assert status.active in ("direct", "buffered") and status.why
    assert 0 < status.free_bytes <= status.total_bytes
    assert list(tmp_path.iterdir()) == []
    asked = probe_volume(VolumeConfig(path=tmp_path, backend="buffered"))
    assert (asked.active, asked.why) == ("buffered", "asked for")


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no tmpfs at /dev/shm")
def test_a_file_system_without_direct_io_is_buffered_and_says_why() -> None:
    shm = Path("/dev/shm")
    if filesystem_name(shm) != "tmpfs":
        pytest.skip("/dev/shm is no tmpfs")
    status = probe_volume(VolumeConfig(path=shm))
    assert (status.active, status.filesystem) == ("buffered", "tmpfs")
    assert "tmpfs" in status.why
    with pytest.raises(StoreError, match="no direct I/O: tmpfs"):
        probe_volume(VolumeConfig(path=shm, backend="direct"))


def test_a_volume_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="missing does not exist"):
        probe_volume(VolumeConfig(path=tmp_path / "missing"))
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file is not a directory"):
        probe_volume(VolumeConfig(path=tmp_path / "file"))


def test_a_volume_without_write_permission_is_named() -> None:
    with pytest.raises(StoreError, match="/proc/self cannot be written"):
        probe_volume(VolumeConfig(path=Path("/proc/self")))


def test_a_store_on_a_volume_that_is_full_to_the_last_page_opens_and_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volumes = volumes_in(tmp_path)
    record = RecordSpec(name="layer", tensors=(TensorSpec(name="w", dtype="float32", shape=(64,)),))
    with TensorStore.create(volumes, [record], name="job") as store:
        store.begin(0)
        store.commit({"step": 0})
    written: list[Path] = []

    def full(path: Path, data: bytes) -> int:
        written.append(path)
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with TensorStore.open(volumes, name="job") as store:
        store.begin(1)
        store.commit({"step": 1})
        assert store.metadata == {"step": 1}
    assert written and not any(path.exists() for path in written)


def test_direct_io_that_fails_to_return_the_bytes_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not _has_direct_io(tmp_path):
        pytest.skip(f"no direct I/O in {tmp_path}")
    write = FileVolume.write

    def write_zeros(volume: FileVolume, offset: int, source: memoryview) -> None:
        write(volume, offset, memoryview(page_buffer(len(source))))

    monkeypatch.setattr(FileVolume, "write", write_zeros)
    status = probe_volume(VolumeConfig(path=tmp_path))
    assert (status.active, status.why) == (
        "buffered",
        "bytes written with O_DIRECT came back different",
    )
