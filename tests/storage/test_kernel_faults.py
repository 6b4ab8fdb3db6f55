"""Faults from below Python: system calls that fail, a full disk, a slow one. Skipped where the
machine does not allow them, with the reason."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from headrace.storage import Corrupt, HostSlot, NoSpace, TensorStore, VolumeConfig, plan_layout
from store_cases import content_of, expected, small_records, volumes_in, write_all
from strace_writer import PageSlot, fill

RECORDS = small_records(2)
PROGRAM = Path(__file__).parents[1] / "strace_writer.py"
MIB = 1 << 20


def _may_trace() -> bool:
    if shutil.which("strace") is None:
        return False
    command = ["strace", "-qq", "-e", "inject=getppid:error=EPERM", "-o", "/dev/null", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


needs_strace = pytest.mark.skipif(not _may_trace(), reason="strace is missing or may not trace")


@pytest.fixture
def volume(tmp_path: Path) -> VolumeConfig:
    """A volume with a store whose last commit is step 1."""
    [config] = volumes_in(tmp_path)
    slot = PageSlot()
    with TensorStore.create([config], RECORDS, name="job", reserve_bytes=0) as store:
        store.begin(1)
        for index, name in enumerate(store.records):
            fill(slot, index, 1)
            store.write_from(name, slot).result()
        store.commit({"step": 1})
    return config


def _traced(volume: VolumeConfig, injection: str) -> tuple[int, dict[str, Any]]:
    """Step 2 under strace with a fault injected: exit status and what the program says."""
    trace = "trace=preadv2,pwritev2,fdatasync"
    command = [
        "strace", "-f", "-qq", "-e", trace, "-e", f"inject={injection}", "-o", "/dev/null",
        sys.executable, str(PROGRAM), str(volume.path), "2",
    ]  # fmt: skip
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": path}
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else {}


def _whole_step(volume: VolumeConfig) -> int:
    """The step found, after a look at every byte of it."""
    slot = PageSlot()
    with TensorStore.open([volume], name="job", read_only=True) as store:
        for index, (name, record) in enumerate(store.records.items()):
            store.read_into(name, slot).result()
            wanted = bytes([index * 16 + store.step]) * record.tensors[0].payload_bytes
            assert bytes(slot.view[: len(wanted)]) == wanted
        assert store.metadata == {"step": store.step}
        assert store.verify() == []
        return store.step


# The thread of the volume makes 6 writes in a step: record and trailer, twice, the commit's body,
# the superblock. The first write of the main thread, the probe's, counts as a first one too.
@needs_strace
@pytest.mark.parametrize("when", [2, 3, 5, 6])
def test_a_write_that_the_kernel_fails_is_named_and_loses_nothing(
    volume: VolumeConfig, when: int
) -> None:
    code, found = _traced(volume, f"pwritev2:error=EIO:when={when}")
    assert code == 0 and found["held_slots"] == 0
    assert found["error"] in ("IoFailed", "Misuse")
    assert "Input/output error" in found["message"] and str(volume.path) in found["message"]
    assert found["read_only"] == (when == 6)
    assert _whole_step(volume) == 1


@needs_strace
def test_a_failing_sync_leaves_the_store_read_only(volume: VolumeConfig) -> None:
    _, found = _traced(volume, "fdatasync:error=EIO:when=1")  # and the probe's
    assert found["error"] == "IoFailed" and found["place"][1] == "sync"
    assert found["read_only"] is True
    assert _whole_step(volume) == 1


@needs_strace
def test_a_write_that_the_kernel_only_claims_is_found_when_read(volume: VolumeConfig) -> None:
    size = RECORDS[0].padded_bytes
    _, found = _traced(volume, f"pwritev2:retval={size}:when=3")
    assert found["error"] is None
    with TensorStore.open([volume], name="job", read_only=True) as store:
        [problem] = store.verify()
        assert "layers.1" in problem
        with pytest.raises(Corrupt, match=r"layers\.1.*generation 2"):
            store.read_into("layers.1", PageSlot()).result()


@needs_strace
@pytest.mark.parametrize("when", [3, 5, 6])
def test_a_process_killed_inside_a_write_leaves_a_whole_commit(
    volume: VolumeConfig, when: int
) -> None:
    code, _ = _traced(volume, f"pwritev2:signal=KILL:when={when}")
    assert code != 0
    assert _whole_step(volume) in (1, 2)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[VolumeConfig]:
    """An ext4 of 64 MiB on a loop device."""
    image, mount = tmp_path / "image", tmp_path / "disk"
    mount.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 64 * MIB)
    steps = [["mkfs.ext4", "-q", "-F", str(image)], ["mount", "-o", "loop", str(image), str(mount)]]
    for command in steps:
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"{' '.join(command[:2])} is not permitted: {done.stderr.strip()}")
    try:
        yield VolumeConfig(path=mount)
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def _fill_disk(disk: VolumeConfig) -> None:
    """Take every byte that is left."""
    with (disk.path / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(MIB))
        except OSError:
            pass
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            os.fsync(file.fileno())


def test_a_disk_that_fills_up_while_the_store_runs_does_not_stop_it(
    small_disk: VolumeConfig, slot: HostSlot
) -> None:
    records = small_records(4, num_elements=60_000)
    with TensorStore.create([small_disk], records, name="job", reserve_bytes=0) as store:
        assert store.status().volumes[0].active == "direct"
        store.begin(1)
        write_all(store, slot, 1)
        store.commit({})
        _fill_disk(small_disk)
        for step in (2, 3, 4):
            store.begin(step)
            write_all(store, slot, step)
            store.commit({"step": step})
        assert content_of(store, slot) == expected(records, slot, 4)
    (small_disk.path / "filler").unlink()


def test_space_taken_while_creating_fails_the_creation_whole(
    small_disk: VolumeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [roomy] = volumes_in(tmp_path)
    records = small_records(30, num_elements=60_000)
    total = plan_layout(records, [roomy, small_disk]).total_bytes
    assert 30 * MIB > total // 2 > 8 * MIB

    def fill_first(*arguments: Any) -> Any:
        with (small_disk.path / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 50 * MIB)
        return create_files(*arguments)

    create_files: Any = vars(import_module("headrace.storage.drives"))["create_files"]
    monkeypatch.setattr("headrace.storage.drives.create_files", fill_first)
    with pytest.raises(NoSpace, match="No space left on device"):
        TensorStore.create([roomy, small_disk], records, name="job", reserve_bytes=0)
    assert list(roomy.path.iterdir()) == []
    assert {path.name for path in small_disk.path.iterdir()} == {"filler", "lost+found"}


BLKIO = Path("/sys/fs/cgroup/blkio")
SLOW = """
import sys, importlib
from importlib import import_module
from pathlib import Path
Path(sys.argv[2]).write_text("0")
from headrace.storage import VolumeConfig, calibrate_volume
module = importlib.import_module("headrace.storage.calibrate")
module.SECONDS = 1.2
module._REGION_BYTES = 128 << 20
found = calibrate_volume(VolumeConfig(path=Path(sys.argv[1])))
print(found.read_bytes_per_second, found.mixed_bytes_per_second)
"""


def test_calibration_finds_the_speed_that_the_kernel_allows(tmp_path: Path) -> None:
    number = os.stat(tmp_path).st_dev
    group = BLKIO / f"headrace-test-{os.getpid()}"
    limit = 100_000_000
    try:
        group.mkdir()
        for name in ("read", "write"):
            (group / f"blkio.throttle.{name}_bps_device").write_text(
                f"{os.major(number)}:{os.minor(number)} {limit}"
            )
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"the kernel's throttle cannot be set here: {error}")
    try:
        done = subprocess.run(
            [sys.executable, "-c", SLOW, str(tmp_path), str(group / "cgroup.procs")],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
    finally:
        group.rmdir()
    read, mixed = (float(word) for word in done.stdout.split())
    assert 0.7 * limit < read < 1.5 * limit
    assert 0.7 * limit < mixed < 2.5 * limit  # reads and writes have a limit each
