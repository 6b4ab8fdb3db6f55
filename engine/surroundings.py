"""What a run ran on and with: processor, device, memory, and the versions that decide bits."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from .cores import usable_cores

_PACKAGES = ("headrace", "torch", "transformers", "tokenizers", "numpy", "numba", "triton", "gguf")


def surroundings(device: str) -> dict[str, Any]:
    """JSON-ready. `device` is "cpu" or "cuda"; a package that is not there is left out."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "packages": dict(_versions()),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": psutil.virtual_memory().total,
        "device": device,
    }
    if device == "cuda":
        found["device_name"] = torch.cuda.get_device_name()
        found["device_bytes"] = torch.cuda.get_device_properties(0).total_memory
        found["cuda"] = torch.version.cuda
    return found


@cache
def _versions() -> list[tuple[str, str]]:
    found = []
    for name in _PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue  # optional, or a bare checkout
    return found


def _processor() -> str:
    """Its name by the kernel, else the kind of machine."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
