"""What this machine has: device memory, host memory within cgroup limits, room on the volumes."""

from collections.abc import Sequence

import psutil

from headrace.storage import VolumeConfig, measure_rooms, tightest_group

from .plan import Box

# What the machine keeps for everything else when no budget is given.
_HOST_SHARE = 0.8
_DEVICE_SHARE = 0.9


def detect_box(*, device: str, volumes: Sequence[str] = ()) -> Box:
    """Measure this machine for `device` ("cpu" or "cuda") and `volumes` ("PATH[:BYTES]")."""
    host = int(available_memory() * _HOST_SHARE)
    rooms = {
        room.path: room for room in measure_rooms([VolumeConfig.parse(text) for text in volumes])
    }
    if device == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info()
        device_bytes = int(free * _DEVICE_SHARE)
        return Box(device=device, device_bytes=device_bytes, host_bytes=host, volumes=rooms)
    # On the CPU both tiers are main memory: half for each, unless budgets say otherwise.
    half = host // 2
    return Box(device=device, device_bytes=half, host_bytes=half, volumes=rooms)


def available_memory() -> int:
    """Bytes that this process can take without swapping or being killed."""
    available = int(psutil.virtual_memory().available)
    group = tightest_group()
    return min(available, group.free_bytes) if group else available
