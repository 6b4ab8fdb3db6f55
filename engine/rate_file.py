"""What was measured of this machine, kept on the first volume beside the volume's own figures.

The figures hold for the hardware that they were taken on: the file names it, and on another machine
it counts as absent. No torch.
"""

import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from headrace.storage import (
    UNFIT,
    VolumeConfig,
    check_figures,
    read_calibration,
    replace_file,
    write_calibration,
)

from .rates import Rates

FILE_NAME = ".headrace-rates.json"
GIB = 2**30


def hardware(device_name: str = "") -> dict[str, str | int]:
    """What the rates depend on: processor, its cores, memory, the device and the torch in use."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / GIB),
        "device": device_name,
        "torch": _torch_version(),
    }


def read_rates(volumes: Sequence[VolumeConfig], *, device_name: str = "") -> Rates | None:
    """The rates measured on this hardware; None when there are none that can be read."""
    for volume in volumes[:1]:
        try:
            values = json.loads((volume.path / FILE_NAME).read_bytes())
            if values["hardware"] == hardware(device_name):
                rates = Rates.from_dict(values["rates"])
                check_figures(rates)
                return rates
        except (OSError, *UNFIT):
            return None
    return None


def write_rates(volumes: Sequence[VolumeConfig], rates: Rates, *, device_name: str = "") -> None:
    """Keep the rates, in place of older ones. Volumes have figures of their own, left out here.

    OSError leaves the older ones.
    """
    kept = replace(rates, volumes={}, prices=None, doubts=())
    text = json.dumps({"hardware": hardware(device_name), "rates": asdict(kept)}, indent=1)
    replace_file(volumes[0].path / FILE_NAME, f"{text}\n".encode())


def mark_drift(
    volumes: Sequence[VolumeConfig], key: str, words: str, *, device_name: str, drives: bool
) -> None:
    """Keep with the figures that a run went by what it found of them, for the next plan to say, and
    the next job to measure again: those of its shape (`shape_key`), and of the `drives` as well.

    A volume that takes no file now leaves them as they are.
    """
    with suppress(OSError):
        rates = read_rates(volumes, device_name=device_name)
        if rates is not None and key in rates.shapes:
            found = replace(rates.shapes[key], drift=words)
            write_rates(
                volumes,
                replace(rates, shapes={**rates.shapes, key: found}),
                device_name=device_name,
            )
        for volume in volumes if drives else ():
            known = read_calibration(volume.path)
            if known is not None:
                write_calibration(volume.path, replace(known, drift=words))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


@cache
def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""
