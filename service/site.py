"""What this machine offers to jobs: device, budgets and volumes, found without waking the GPU.

A process that initialises CUDA holds device memory and can be poisoned by a fault; the API and
prepare processes ask the driver through NVML instead.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, Self

import pynvml

from headrace.engine import Box, available_memory, detect_box, known_rates
from headrace.storage import (
    VolumeConfig,
    VolumeRoom,
    find_overpromises,
    measure_rooms,
    memory_status,
    probe_volume,
    refuse_same_directory,
)

from .compiler import find_compiler
from .errors import ApiError
from .settings import Settings

log = logging.getLogger(__name__)

DEVICE_SHARE = 0.9  # of its free memory, when no budget is given

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where jobs run. Budgets are bytes, None for what the box has; volumes "PATH[:BYTES]".

    `lent` are bytes by volume that the running job's state holds: they will be free again by the
    time that another job runs.
    """

    device: Device
    device_bytes: int | None
    host_bytes: int | None
    volumes: tuple[str, ...]
    lent: Mapping[str, int] = field(default_factory=dict)
    calibrate: bool = False  # the first job measures what is not known yet
    compiles: bool = False  # layers, for jobs that leave that open
    described: Box | None = None  # planned for, in place of this machine

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The site that the settings describe."""
        device = find_device() if settings.device == "auto" else settings.device
        return cls(
            device=device,
            compiles=device == "cuda" and find_compiler().usable,
            device_bytes=settings.device_bytes,
            host_bytes=settings.host_bytes,
            volumes=settings.volume_list,
            calibrate=settings.calibrate,
        )

    def on(self, box: Box) -> "Site":
        """The same site, as if the machine were that box."""
        device: Device = "cuda" if box.device == "cuda" else "cpu"
        compiles = device == "cuda"
        volumes = tuple(box.volumes)
        return replace(self, device=device, volumes=volumes, described=box, compiles=compiles)

    def box(self) -> Box:
        """What the machine has free at this moment. ApiError when its GPU is gone."""
        if self.described is not None:
            return self.described
        box = detect_box(device="cpu", volumes=self.volumes)
        box = replace(box, volumes=with_lent(box.volumes, self.lent))
        if self.device == "cpu":
            return box
        shown = gpus()
        if not shown:
            message = "This daemon is set to device cuda, and the driver shows no GPU."
            hint = "Look at nvidia-smi, or set device to cpu."
            raise ApiError(503, message, code="no_device", hint=hint)
        free = int(shown[0]["free_bytes"] * DEVICE_SHARE)
        host = box.device_bytes + box.host_bytes  # on a CPU, one memory is split in two
        volumes = [VolumeConfig.parse(text) for text in self.volumes]
        rates = known_rates("cuda", volumes, device_name=shown[0]["name"])
        return replace(box, device="cuda", device_bytes=free, host_bytes=host, rates=rates)

    def to_dict(self) -> dict[str, Any]:
        """The fields of this machine, JSON-ready."""
        return {name: value for name, value in asdict(self).items() if name != "described"}


def with_lent(
    volumes: Mapping[str, VolumeRoom | int], lent: Mapping[str, int]
) -> dict[str, VolumeRoom | int]:
    """The rooms of the volumes with what is lent given back to each and to its drive."""
    by_drive: Counter[int | None] = Counter()
    for path, room in volumes.items():
        if isinstance(room, VolumeRoom):
            by_drive[room.device] += lent.get(path, 0)
    return {
        path: replace(
            room,
            free_bytes=room.free_bytes + by_drive[room.device],
            taken_bytes=max(0, room.taken_bytes - lent.get(path, 0)),
        )
        if isinstance(room, VolumeRoom)
        else room
        for path, room in volumes.items()
    }


def find_device() -> Device:
    """`cuda` when the driver shows a GPU and torch is built for it, else `cpu`."""
    return "cuda" if gpus() and _torch_is_for_cuda() else "cpu"


def gpus() -> Sequence[dict[str, Any]]:
    """Each GPU that the driver shows; none without a driver.

    Name, memory in bytes, `busy_share` (part of the last moment in which a kernel ran) and
    temperature, the last two None where the driver does not tell.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return [_describe(i) for i in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def memory() -> dict[str, Any]:
    """Bytes of memory that there are for this process, and how many it can still take."""
    found = memory_status()
    limits = [size for size in (found.total_bytes, found.group_limit_bytes) if size is not None]
    return {"total_bytes": min(limits, default=None), "free_bytes": available_memory()}


def probe_volumes(settings: Settings) -> list[dict[str, Any]]:
    """Move bytes on every volume to see what it can do. StoreError for one of no use."""
    if not settings.volumes:
        Path(settings.volume_list[0]).mkdir(parents=True, exist_ok=True)
    volumes = [VolumeConfig.parse(text) for text in settings.volume_list]
    refuse_same_directory(volumes)
    found = []
    for volume in volumes:
        status = asdict(probe_volume(volume))
        log.info("volume %s: %s, %s", status["path"], status["active"], status["why"])
        found.append(status)
    for overpromise in find_overpromises(measure_rooms(volumes)):
        log.warning("%s", overpromise)
    return found


def _describe(index: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    busy = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    heat = _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)
    return {
        "name": str(pynvml.nvmlDeviceGetName(handle)),
        "total_bytes": int(memory.total),
        "free_bytes": int(memory.free),
        "busy_share": None if busy is None else busy.gpu / 100,
        "temperature_celsius": None if heat is None else float(heat),
    }


def _ask(question: Callable[..., Any], *arguments: Any) -> Any:
    """The driver's answer; None when this GPU has none, as in a virtual machine."""
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def _torch_is_for_cuda() -> bool:
    try:
        return not version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return False
