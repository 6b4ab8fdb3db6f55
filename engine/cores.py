"""Processor cores that this process may keep busy: its affinity, its hyperthreads, its quota."""

import os
from collections.abc import Iterable
from pathlib import Path

from headrace.storage import cpu_quota

_CPUS = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Physical cores given to this process, at least 1; two threads of a core count once."""
    cores = physical_cores(os.sched_getaffinity(0), _CPUS)
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def physical_cores(cpus: Iterable[int], tree: Path) -> int:
    """How many cores these logical processors are, by `tree` (/sys/devices/system/cpu)."""
    return len({_siblings(tree / f"cpu{cpu}" / "topology/thread_siblings_list") or cpu
                for cpu in cpus})  # fmt: skip


def _siblings(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:  # a container without a topology: every processor is a core
        return ""
