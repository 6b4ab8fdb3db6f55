"""What this machine has: device memory, host memory within cgroup limits, room on the volumes."""

from collections.abc import Sequence
from dataclasses import replace

import psutil

from headrace.storage import VolumeConfig, measure_rooms, read_calibration, tightest_group

from .capacity import Box
from .rate_file import read_rates
from .rates import Rates, VolumeRates, default_rates

# What the machine keeps for everything else when no budget is given.
_HOST_SHARE = 0.8
_DEVICE_SHARE = 0.9


def detect_box(*, device: str, volumes: Sequence[str | VolumeConfig] = ()) -> Box:
    """Measure this machine for `device` ("cpu" or "cuda") and `volumes` ("PATH[:BYTES]")."""
    host = int(available_memory() * _HOST_SHARE)
    configs = [VolumeConfig.parse(one) if isinstance(one, str) else one for one in volumes]
    rooms = {room.path: room for room in measure_rooms(configs)}
    if device == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info()
        return Box(
            device=device,
            device_bytes=int(free * _DEVICE_SHARE),
            host_bytes=host,
            volumes=rooms,
            rates=known_rates(device, configs, device_name=torch.cuda.get_device_name()),
        )
    rates = known_rates(device, configs)
    # On the CPU both tiers are main memory: half for each, unless budgets say otherwise.
    half = host // 2
    return Box(device=device, device_bytes=half, host_bytes=half, volumes=rooms, rates=rates)


def known_rates(device: str, volumes: Sequence[VolumeConfig], *, device_name: str = "") -> Rates:
    """What is known of this machine's speed: what was measured on it, and what is usual besides.

    `device_name` is the GPU's, by its driver: figures of another one do not count.
    """
    measured = read_rates(volumes, device_name=device_name) or default_rates(device)
    speeds = {str(volume.path): _volume_rates(volume, measured) for volume in volumes}
    known = {volume.path: read_calibration(volume.path) for volume in volumes}
    return replace(
        measured,
        volumes={path: speed for path, speed in speeds.items() if speed is not None},
        doubts=tuple(f"{path} {one.doubt}" for path, one in known.items() if one and one.doubt),
    )


def _volume_rates(volume: VolumeConfig, measured: Rates) -> VolumeRates | None:
    """As calibrated, within the throttle; None for a volume of which nothing is known."""
    calibration = read_calibration(volume.path)
    slowest = float(volume.throttle_bytes_per_second or "inf")
    if calibration is None:
        known = measured.default_volume
        if slowest >= known.mixed_rate:
            return None
        return VolumeRates(read=slowest, write=slowest, mixed=slowest)
    return VolumeRates(
        read=min(slowest, calibration.read_bytes_per_second),
        write=min(slowest, calibration.write_bytes_per_second),
        mixed=min(slowest, calibration.mixed_bytes_per_second),
        rated_bytes=measured.rated_bytes.get(str(volume.path)),
    )


def available_memory() -> int:
    """Bytes that this process can take without swapping or being killed."""
    available = int(psutil.virtual_memory().available)
    group = tightest_group()
    return min(available, group.free_bytes) if group else available
