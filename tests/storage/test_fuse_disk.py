"""A drive that dies under a mounted file system. Skipped, with the reason, where FUSE, a loop
device or a mount is not permitted."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.storage import HostSlot, IoFailed, TensorStore, VolumeConfig
from store_cases import content_of, expected, small_records, write_all

PROGRAM = Path(__file__).parents[1] / "fuse_disk.py"
MIB = 1 << 20
RECORDS = small_records(4, num_elements=60_000)
START_SECONDS = 10


class DyingDisk:
    """The mounted file system and the switch that makes its drive fail."""

    def __init__(self, mount: Path, control: Path) -> None:
        self.volume = VolumeConfig(path=mount)
        self._control = control

    def fail(self, operation: str) -> None:
        """Answer EIO to every "read" or "write" from now on; "" heals it."""
        self._control.write_text(operation)


def _need(*command: str) -> None:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{' '.join(command[:2])} is not permitted here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[DyingDisk]:
    if find_spec("mfusepy") is None or not os.path.exists("/dev/fuse"):
        pytest.skip("mfusepy or /dev/fuse is missing")
    below, above = tmp_path / "fuse", tmp_path / "disk"
    backing, control = tmp_path / "backing", tmp_path / "control"
    for folder in (below, above):
        folder.mkdir()
    backing.write_bytes(b"")
    os.truncate(backing, 64 * MIB)
    control.write_text("")
    with ExitStack() as stack:
        command = [sys.executable, str(PROGRAM), str(below), str(backing), str(control)]
        server = stack.enter_context(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        stack.callback(server.terminate)
        stack.callback(subprocess.run, ["umount", "-l", str(below)], capture_output=True)
        started = time.monotonic()
        while not (below / "disk").exists():
            if server.poll() is not None or time.monotonic() - started > START_SECONDS:
                pytest.skip("a FUSE file system cannot be mounted here")
            time.sleep(0.05)
        _need("mkfs.ext4", "-q", "-F", str(below / "disk"))
        _need("mount", "-o", "loop", str(below / "disk"), str(above))
        stack.callback(subprocess.run, ["umount", "-l", str(above)], capture_output=True)
        stack.callback(control.write_text, "")  # what is unmounted must still be written
        yield DyingDisk(above, control)


def _with_a_commit(disk: DyingDisk, slot: HostSlot) -> TensorStore:
    store = TensorStore.create([disk.volume], RECORDS, name="job", reserve_bytes=0)
    store.begin(1)
    write_all(store, slot, 1)
    store.commit({"step": 1})
    return store


def test_a_drive_that_stops_writing_loses_no_commit(disk: DyingDisk, slot: HostSlot) -> None:
    with _with_a_commit(disk, slot) as store:
        store.begin(2)
        disk.fail("write")
        with pytest.raises(IoFailed, match=f"{disk.volume.path}.*Input/output error"):
            write_all(store, slot, 2)
        disk.fail("")
        store.abort()
        assert content_of(store, slot) == expected(RECORDS, slot, 1)
        store.begin(2)
        write_all(store, slot, 2)
        store.commit({"step": 2})
    with TensorStore.open([disk.volume], name="job") as store:
        assert content_of(store, slot) == expected(RECORDS, slot, 2)


def test_a_drive_that_cannot_be_read_is_named_and_reads_again_when_it_can(
    disk: DyingDisk, slot: HostSlot
) -> None:
    with _with_a_commit(disk, slot) as store:
        name = RECORDS[0].name
        Path("/proc/sys/vm/drop_caches").write_text("3")
        disk.fail("read")
        with pytest.raises(IoFailed, match="Input/output error"):
            store.read_into(name, slot).result()
        disk.fail("")
        assert content_of(store, slot) == expected(RECORDS, slot, 1)
