"""Is this box fit for training? One check a function, each with the fix when it does not pass."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ..compiler import find_compiler
from .output import human_bytes

Verdict = Literal["pass", "warn", "fail"]
LOW_MEMORY_BYTES = 4 * 10**9
LOW_SPACE_BYTES = 20 * 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding. `fix` says what to do about a warning or a failure."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        return asdict(self)


def examine(
    volumes: Sequence[str],
    data_dir: Path,
    *,
    device: str = "auto",
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[Check]:
    """Every check, in order. Imports torch, and writes to the volumes to see what they can do.

    What takes seconds is told before it begins.
    """
    yield check_python()
    tell("loading torch and looking for a GPU")
    yield from check_torch(device)
    yield check_compiler(needed=device != "cpu" and _has_cuda())
    tell("looking for the compiled form of the optimizer")
    yield check_cpu_optimizer()
    tell("looking at memory, limits and the data directory")
    yield check_memory()
    yield check_data_dir(data_dir)
    yield from _check_host(data_dir, device)
    for volume in volumes:
        tell(f"writing to volume {volume} and reading it back")
        check = check_volume(volume)
        yield check
        if check.verdict != "fail":
            yield from _check_drive(volume, gpu=device != "cpu" and _has_cuda())
    yield from check_limits(volumes)


def _check_host(data_dir: Path, device: str) -> Iterator[Check]:
    from .doctor_host import check_host

    gpu = device == "cuda" or (device == "auto" and _has_cuda())
    return check_host(data_dir, device=device, gpu=gpu)


def _check_drive(volume: str, *, gpu: bool) -> Iterator[Check]:
    from headrace.storage import VolumeConfig

    from .doctor_drives import check_drive

    return check_drive(VolumeConfig.parse(volume).path, gpu=gpu)


def check_python() -> Check:
    """Which interpreter runs; an unsupported one cannot install Headrace at all."""
    found = f"{sys.version.split()[0]} at {sys.executable}"
    return Check(name="python", verdict="pass", found=found)


def check_torch(device: str) -> Iterator[Check]:
    """torch is there, and the device that was asked for too."""
    if importlib.util.find_spec("torch") is None:
        fix = "pip install torch, the build that suits the GPU"
        yield Check(name="torch", verdict="fail", found="not installed", fix=fix)
        return
    import torch

    yield Check(name="torch", verdict="pass", found=torch.__version__)
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        found = f"{torch.cuda.get_device_name()}, {human_bytes(free)} of {human_bytes(total)} free"
        yield Check(name="device", verdict="pass", found=found)
    elif device == "cuda":
        built = torch.version.cuda or "no"
        found = f"no CUDA device (torch is built for CUDA: {built})"
        fix = "install a CUDA build of torch, check nvidia-smi, or use --device cpu"
        yield Check(name="device", verdict="fail", found=found, fix=fix)
    else:
        yield Check(name="device", verdict="pass", found=f"cpu, {torch.get_num_threads()} threads")


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def check_compiler(*, needed: bool) -> Check:
    """A C compiler and Python's headers, which Triton and torch.compile use on a GPU."""
    compiler = find_compiler()
    headers = "found" if compiler.headers else "missing"
    found = f"{compiler.path or 'no C compiler'}, Python headers {headers}"
    if compiler.usable:
        return Check(name="compiler", verdict="pass", found=found)
    if not needed:
        return Check(name="compiler", verdict="pass", found=f"{found}; the CPU needs neither")
    fix = "install gcc and the headers of this Python (python3-dev on Debian)"
    return Check(name="compiler", verdict="warn", found=found, fix=fix)


def check_cpu_optimizer() -> Check:
    """Updates of records in host memory are one compiled pass; without numba far slower."""
    if importlib.util.find_spec("torch") is None:
        return Check(name="optimizer", verdict="pass", found="not looked at without torch")
    from headrace.engine import cpu_kernel, usable_cores

    kernel = cpu_kernel()
    found = f"on the CPU {kernel.form}, {usable_cores()} cores; {kernel.why}"
    if kernel.form == "fused":
        return Check(name="optimizer", verdict="pass", found=found)
    fix = "pip install numba in a release that knows this Python and numpy"
    return Check(name="optimizer", verdict="warn", found=found, fix=fix)


def check_memory() -> Check:
    """Memory that is free, within the limit of the control group when there is one."""
    import psutil

    from headrace.engine import available_memory

    machine, available = psutil.virtual_memory().available, available_memory()
    found = f"{human_bytes(available)} available"
    if available < machine:
        found += f" by the limit of a control group, of {human_bytes(machine)} on the machine"
    if available >= LOW_MEMORY_BYTES:
        return Check(name="memory", verdict="pass", found=found)
    fix = "free memory, raise the limit, or keep --host-bytes and --device-bytes well below it"
    return Check(name="memory", verdict="warn", found=found, fix=fix)


def check_data_dir(data_dir: Path) -> Check:
    """The daemon can write its data directory, and its drive has room."""
    home = data_dir
    while not home.exists():
        home = home.parent
    name = f"data {data_dir}"
    if os.statvfs(home).f_flag & os.ST_RDONLY:
        fix = "mount it to be written (no `:ro`, no read_only), or name another with --data-dir"
        return Check(name=name, verdict="fail", found=f"{home} is mounted read-only", fix=fix)
    if not os.access(home, os.W_OK):
        fix = f"chown {os.getuid()}:{os.getgid()} {home}, on the host where it is a mount"
        return Check(name=name, verdict="fail", found=f"{home} is not writable", fix=fix)
    free = shutil.disk_usage(home).free
    found = f"{human_bytes(free)} free"
    if free >= LOW_SPACE_BYTES:
        return Check(name=name, verdict="pass", found=found)
    fix = "an export needs 2 to 4 bytes a parameter, the state 24 on its volume; make room"
    return Check(name=name, verdict="warn", found=found, fix=fix)


def check_volume(volume: str) -> Check:
    """A volume takes and gives back real bytes, and by which way; buffered is a warning."""
    from headrace.storage import StoreError, VolumeConfig, probe_volume

    try:
        status = probe_volume(VolumeConfig.parse(volume))
    except (StoreError, ValueError) as error:
        fix = "name a writable directory on a local drive with --volume"
        return Check(name=f"volume {volume}", verdict="fail", found=str(error), fix=fix)
    found = f"{status.active}: {status.why}; {human_bytes(status.free_bytes)} free"
    if not status.free_bytes:
        fix = "it is full: only jobs whose state lies there go on; make room, or add a volume"
        return Check(name=f"volume {volume}", verdict="warn", found=found, fix=fix)
    if status.active == "direct":
        return Check(name=f"volume {volume}", verdict="pass", found=found)
    fix = (
        "direct I/O needs a local file system such as ext4 or XFS (in a container a directory of "
        "the host, bind-mounted); buffered I/O goes through the page cache"
    )
    return Check(name=f"volume {volume}", verdict="warn", found=found, fix=fix)


def check_limits(volumes: Sequence[str]) -> Iterator[Check]:
    """Limits of volumes promise no more than their drives have; nothing without limits."""
    from headrace.storage import VolumeConfig, find_overpromises, measure_rooms

    limited = [one for one in map(VolumeConfig.parse, volumes) if one.limit_bytes is not None]
    if not limited:
        return
    found = find_overpromises(measure_rooms(limited))
    for one in found:
        fix = "lower the limit (--volume PATH:BYTES), or make room on the drive"
        yield Check(name=f"limit {', '.join(one.paths)}", verdict="warn", found=str(one), fix=fix)
    if not found:
        yield Check(
            name="limits", verdict="pass", found="the drives have what the volumes may take"
        )
