"""What this machine has: device memory, host memory within cgroup limits, free volume space."""

import os
from collections.abc import Sequence
from pathlib import Path

import psutil

from headrace.storage import VolumeConfig

from .plan import Box

# What the machine keeps for everything else when no budget is given.
_HOST_SHARE = 0.8
_DEVICE_SHARE = 0.9
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def detect_box(*, device: str, volumes: Sequence[str]) -> Box:
    """Measure this machine for `device` ("cpu" or "cuda") and `volumes` ("PATH[:BYTES]")."""
    host = int(min(psutil.virtual_memory().available, *_cgroup_limits()) * _HOST_SHARE)
    if device == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info()
        return Box(
            device=device,
            device_bytes=int(free * _DEVICE_SHARE),
            host_bytes=host,
            volumes=_free_bytes(volumes),
        )
    # On the CPU both tiers are main memory: half for each, unless budgets say otherwise.
    return Box(
        device=device,
        device_bytes=host // 2,
        host_bytes=host // 2,
        volumes=_free_bytes(volumes),
    )


def _cgroup_limits() -> list[int]:
    limits = [psutil.virtual_memory().total]
    for path in _CGROUP_LIMITS:
        if path.exists():
            text = path.read_text().strip()
            if text.isdigit():
                limits.append(int(text))
    return limits


def _free_bytes(volumes: Sequence[str]) -> dict[str, int]:
    """Free bytes of each volume; a volume that does not exist yet counts with its parent."""
    found = {}
    for text in volumes:
        config = VolumeConfig.parse(text)
        path = config.path
        while not path.exists():
            path = path.parent
        stats = os.statvfs(path)
        free = stats.f_bavail * stats.f_frsize
        found[str(config.path)] = min(free, config.limit_bytes or free)
    return found
