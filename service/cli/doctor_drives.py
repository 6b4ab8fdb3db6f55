"""Checks of the drives below the volumes: speed as measured, wear, and GPUDirect Storage."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from .doctor import Check
from .output import human_bytes

WORN_PERCENT = 80


def check_drive(path: Path, *, gpu: bool) -> Iterator[Check]:
    """What is known of the drive that holds the volume `path`."""
    yield check_speed(path)
    yield check_wear(path)
    if gpu:
        yield check_gds(path)


def check_speed(path: Path) -> Check:
    """The figures that `headrace calibrate` or a job left, their date, and what is said of them."""
    from headrace.storage import read_calibration

    found = read_calibration(path)
    name = f"speed {path}"
    if found is None:
        return Check(name=name, verdict="pass", found="not measured; `headrace calibrate` does it")
    rates = (found.read_bytes_per_second, found.write_bytes_per_second)
    read, write = (f"{human_bytes(rate)}/s" for rate in rates)
    told = f"read {read}, write {write}, measured {found.measured_at}"
    if not found.doubt:
        return Check(name=name, verdict="pass", found=told)
    command = f"headrace calibrate{' --full' * found.full}"
    return Check(name=name, verdict="warn", found=f"{told}; {found.doubt}",
                 fix=f"`{command}` while the box is quiet measures it again")  # fmt: skip


def check_wear(path: Path) -> Check:
    """How much of its rated life the drive has used; unknown where it does not say."""
    from headrace.storage import drive_health

    health = drive_health(path)
    name = f"wear {path}"
    heat = health.temperature_celsius
    degrees = "" if heat is None else f", {heat:.0f} °C"
    if health.percentage_used is None:
        found = f"unknown: {health.why or 'the drive does not say'}{degrees}"
        return Check(name=name, verdict="pass", found=found)
    found = f"{health.device}: {health.percentage_used} % of its rated life used{degrees}"
    if health.percentage_used < WORN_PERCENT:
        return Check(name=name, verdict="pass", found=found)
    fix = "training writes the whole state in every step: plan for another drive"
    return Check(name=name, verdict="warn", found=found, fix=fix)


def check_gds(path: Path) -> Check:
    """Whether GPUDirect Storage is real here: proven by a transfer in a process of its own."""
    from headrace.storage import install_line, probe_gds

    name = f"GPUDirect Storage {path}"
    if find_spec("kvikio") is None:
        found = (
            f"kvikio is not installed ({install_line('gds')}); pinned memory and a copy are used"
        )
        return Check(name=name, verdict="pass", found=found)

    status = probe_gds(path)
    found = f"{status.active or 'no'}: {status.why}"
    return Check(name=name, verdict="pass", found=found)
