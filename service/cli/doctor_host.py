"""What the host, or the container that it gives, must grant: limits, mounts, devices.

Outside a container the fix names systemd and the shell, inside it names the options of docker and
compose. `root` stands before every path that is looked at, so that tests can lay out a host.
"""

import os
import resource
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from .doctor import Check
from .output import human_bytes

ROOT = Path("/")
LOW_SHM_BYTES = 1 << 30
LOW_OPEN_FILES = 4096
LAYERED = frozenset({"overlay", "aufs"})  # a container's own file system


def check_host(data_dir: Path, *, device: str, gpu: bool) -> Iterator[Check]:
    """Every check of this file. `gpu`: training on one is possible, or `device` asks for it."""
    inside = in_container()
    if inside:
        yield check_data_mount(data_dir)
    yield check_scratch()
    yield check_open_files(inside=inside)
    if gpu:
        yield check_locked_memory(inside=inside)
        yield check_shared_memory(inside=inside)
    if device != "cpu":
        yield check_gpu_devices(inside=inside, gpu=gpu)
    if gpu:
        yield check_gds_devices(inside=inside)


def in_container(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a container of docker, podman or systemd."""
    marks = (".dockerenv", "run/.containerenv")
    return "container" in environment or any((root / mark).exists() for mark in marks)


def check_locked_memory(*, inside: bool, limit: int | None = None) -> Check:
    """The limit of locked memory (bytes, -1 for none), which pinned host memory may count against.

    `limit` of None: that of this process.
    """
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if limit == resource.RLIM_INFINITY:
        return Check(name="locked memory", verdict="pass", found="no limit")
    fix = (
        "docker run --ulimit memlock=-1; in compose: ulimits: {memlock: {soft: -1, hard: -1}}"
        if inside
        else "LimitMEMLOCK=infinity in the systemd unit, or `* - memlock unlimited` in "
        "/etc/security/limits.d/headrace.conf and a new login"
    )
    found = f"at most {human_bytes(limit)}; CUDA may refuse to pin more"
    return Check(name="locked memory", verdict="warn", found=found, fix=fix)


def check_open_files(*, inside: bool, limit: int | None = None) -> Check:
    """How many files and connections the daemon may hold open; `limit` of None: its own."""
    if limit is None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit >= LOW_OPEN_FILES:
        found = "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit}"
        return Check(name="open files", verdict="pass", found=found)
    way = "docker run --ulimit nofile=1048576" if inside else "LimitNOFILE=1048576, or ulimit -n"
    found = f"at most {limit}; every viewer and every shard of a model holds one"
    return Check(name="open files", verdict="warn", found=found, fix=way)


def check_shared_memory(*, inside: bool, root: Path = ROOT) -> Check:
    """Room in /dev/shm, through which CUDA and its libraries share memory between processes."""
    path = root / "dev/shm"
    way = "docker run --shm-size 8g; in compose: shm_size: 8g" if inside else "mount tmpfs there"
    if not path.is_dir():
        return Check(name="shared memory", verdict="warn", found="no /dev/shm", fix=way)
    state = os.statvfs(path)
    size = state.f_blocks * state.f_frsize
    found = f"/dev/shm of {human_bytes(size)}"
    if size >= LOW_SHM_BYTES:
        return Check(name="shared memory", verdict="pass", found=found)
    return Check(name="shared memory", verdict="warn", found=found, fix=way)


def check_scratch() -> Check:
    """A directory for temporary files; a read-only root without one leaves none."""
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError as error:
        fix = "docker run --tmpfs /tmp, or TMPDIR naming a directory that can be written"
        return Check(name="temporary files", verdict="fail", found=str(error), fix=fix)
    return Check(name="temporary files", verdict="pass", found=folder)


def check_data_mount(data_dir: Path, *, root: Path = ROOT) -> Check:
    """In a container: the data directory outlives it, since it lies on a mount."""
    name = f"data {data_dir} outlives the container"
    kind = mount_type(
        data_dir.resolve(), (root / "proc/self/mountinfo").read_text(encoding="utf-8")
    )
    if kind not in LAYERED and kind != "tmpfs":
        return Check(name=name, verdict="pass", found=f"on a mount of {kind}")
    found = f"no: it lies on {kind}, and jobs, files and results end with the container"
    fix = f"mount a volume there: docker run -v headrace-data:{data_dir}"
    return Check(name=name, verdict="fail", found=found, fix=fix)


def mount_type(path: Path, mountinfo: str) -> str:
    """The file system type of the mount that holds `path`, by the text of /proc/self/mountinfo."""
    best, kind = -1, "unknown"
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        # later lines lie over earlier ones with the same mount point
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind


def check_gpu_devices(*, inside: bool, gpu: bool, root: Path = ROOT) -> Check:
    """The driver's devices are here; a container has them only when it was given them."""
    devices = sorted(path.name for path in (root / "dev").glob("nvidia[0-9]*"))
    if devices:
        return Check(name="GPU devices", verdict="pass", found=", ".join(devices))
    if (root / "proc/driver/nvidia/version").is_file():
        found = "the host has the NVIDIA driver, and no /dev/nvidia* is here"
        fix = (
            "install the NVIDIA Container Toolkit on the host, then docker run --gpus all, or "
            "--profile gpu with compose"
            if inside
            else "nvidia-smi as root makes them; is nvidia-persistenced running?"
        )
        return Check(name="GPU devices", verdict="warn", found=found, fix=fix)
    found = "no NVIDIA driver" + ("" if gpu else "; training runs on the CPU")
    if not gpu:
        return Check(name="GPU devices", verdict="pass", found=found)
    fix = "install the NVIDIA driver on the host" + (
        " and the NVIDIA Container Toolkit, then docker run --gpus all" if inside else ""
    )
    return Check(name="GPU devices", verdict="warn", found=found, fix=fix)


def check_gds_devices(*, inside: bool, root: Path = ROOT) -> Check:
    """Whether nvidia-fs is to be had; without it GPUDirect Storage needs P2PDMA, or is not used."""
    loaded = (root / "proc/driver/nvidia-fs/version").is_file()
    if any((root / "dev").glob("nvidia-fs*")):
        return Check(name="nvidia-fs", verdict="pass", found="/dev/nvidia-fs* are here")
    if not loaded:
        found = "not loaded; it is optional, pinned memory and a copy do the same work"
        return Check(name="nvidia-fs", verdict="pass", found=found)
    found = "loaded on the host, and no /dev/nvidia-fs* is here"
    fix = (
        "--profile gds with compose; or docker run -e NVIDIA_GDS=enabled --cap-add IPC_LOCK "
        "-v /run/udev:/run/udev:ro"
        if inside
        else "udevadm trigger, or load nvidia-fs again"
    )
    return Check(name="nvidia-fs", verdict="warn", found=found, fix=fix)
