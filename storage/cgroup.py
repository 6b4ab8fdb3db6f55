"""What the control groups of this process leave it of memory and processor time, v1 and v2, at
every level above."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMemory:
    """The control group that leaves the least: its limit and what it may still take, in bytes."""

    limit_bytes: int
    free_bytes: int


def tightest_group(root: Path = CGROUP_ROOT, own: Path = OWN_GROUPS) -> GroupMemory | None:
    """The group, this process's own or one above, with the least memory left; None: no limit.

    Page cache that the kernel can drop at once does not count as used.
    """
    groups = [group for directory in _levels(root, own, "memory") if (group := _read(directory))]
    return min(groups, key=lambda group: group.free_bytes, default=None)


def cpu_quota(root: Path = CGROUP_ROOT, own: Path = OWN_GROUPS) -> float | None:
    """Processors' worth of time that this process may use, by its group or one above; None: all."""
    quotas = [quota for directory in _levels(root, own, "cpu") if (quota := _quota(directory))]
    return min(quotas, default=None)


def _levels(root: Path, own: Path, controller: str) -> Iterator[Path]:
    """A controller's directories from the process's group up to the root.

    A container may see its own group as the root, and be named by a path that is not there.
    """
    try:
        lines = own.read_text().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / controller if controllers else root
        parts = [part for part in path.split("/") if part]
        for depth in range(0 if ".." in parts else len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _read(directory: Path) -> GroupMemory | None:
    limit = _number(directory / "memory.max") or _number(directory / "memory.limit_in_bytes")
    if limit is None or limit >= 2**60:  # v1 writes a huge number for "no limit"
        return None
    used = _number(directory / "memory.current") or _number(directory / "memory.usage_in_bytes")
    free = limit - (used or 0) + _droppable(directory)
    return GroupMemory(limit_bytes=limit, free_bytes=max(0, min(limit, free)))


def _quota(directory: Path) -> float | None:
    try:
        words = (directory / "cpu.max").read_text().split()
    except OSError:
        words = ["max"]
    if words[0] != "max":
        return int(words[0]) / int(words[1])
    time, period = (_number(directory / f"cpu.cfs_{one}_us") for one in ("quota", "period"))
    return time / period if time and period else None  # v1 writes -1 for "no limit"


def _number(file: Path) -> int | None:
    """The number in a file; None when there is no such file, or a word in it."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _droppable(directory: Path) -> int:
    """Bytes of page cache that nobody has used lately."""
    try:
        lines = (directory / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split() for line in lines)
    return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
