"""What host memory there is, and what limits its use: for status, and for the size of the arena."""

import resource
from dataclasses import dataclass
from pathlib import Path

from .cgroup import tightest_group
from .errors import NoSpace

_HUGE_PAGES = "kernel/mm/transparent_hugepage/enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStatus:
    """Bytes of host memory and its limits; None: no limit, or not known.

    `memlock_bytes` bounds locked memory; CUDA's registration is believed to be exempt.
    `transparent_huge_pages` is always, madvise (both are fine) or never (direct I/O is slower).
    """

    total_bytes: int | None
    available_bytes: int | None
    group_limit_bytes: int | None
    group_free_bytes: int | None
    memlock_bytes: int | None
    transparent_huge_pages: str
    numa_nodes: int


def memory_status(*, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> MemoryStatus:
    """Look at the system as it is now."""
    group = tightest_group(sys / "fs/cgroup", proc / "self/cgroup")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return MemoryStatus(
        total_bytes=_meminfo(proc / "meminfo", "MemTotal"),
        available_bytes=_meminfo(proc / "meminfo", "MemAvailable"),
        group_limit_bytes=group.limit_bytes if group else None,
        group_free_bytes=group.free_bytes if group else None,
        memlock_bytes=None if soft == resource.RLIM_INFINITY else soft,
        transparent_huge_pages=_chosen(sys / _HUGE_PAGES),
        numa_nodes=max(1, len(list((sys / "devices/system/node").glob("node[0-9]*")))),
    )


def check_arena(arena_bytes: int) -> None:
    """Raise NoSpace for an arena that the control groups of this process would not allow."""
    group = tightest_group()
    if group is not None and arena_bytes > group.free_bytes:
        raise NoSpace(
            f"an arena of {arena_bytes} bytes was asked for; the control group allows "
            f"{group.limit_bytes} bytes of memory, of which {group.free_bytes} are free. "
            "Lower the host budget or raise the limit"
        )


def _meminfo(file: Path, wanted: str) -> int | None:
    for line in file.read_text().splitlines() if file.exists() else ():
        name, _, value = line.partition(":")
        if name == wanted:
            return int(value.split()[0]) * 1024
    return None


def _chosen(file: Path) -> str:
    """The word in brackets, as in "always [madvise] never"."""
    text = file.read_text() if file.exists() else ""
    _, _, rest = text.partition("[")
    return rest.partition("]")[0] or "unknown"
