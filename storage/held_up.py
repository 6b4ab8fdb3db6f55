"""How much other work on the box held this process up, as the kernel counts it. No torch.

A thread that could run and has to wait for a processor is counted (/proc/PID/task/TID/schedstat:
nanoseconds on a processor, nanoseconds of waiting for one), and so is time that a hypervisor gave
to others (steal of /proc/stat).
"""

from pathlib import Path
from typing import NamedTuple

BUSY_SHARE = 0.1  # from here on what was measured meanwhile is worth little

_Tasks = dict[str, tuple[int, int]]  # by thread: ran, waited


def busy_words(share: float) -> str:
    """What is to be said of figures taken while this process was held up for that share of the
    time; empty where it is too little to matter."""
    if share <= BUSY_SHARE:
        return ""
    return f"measured while other work held this box up for {100 * share:.0f} % of the time"


class _Look(NamedTuple):
    tasks: _Tasks
    used: int  # of all processors, in the kernel's ticks
    stolen: int


class HeldUp:
    """Watches from when it is made on; `share` says what there was of it until then."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before = _look(proc)

    def share(self) -> float:
        """Of the time that this process's threads wanted a processor, the part that they waited.

        0 where the kernel does not count it. Threads that began or ended meanwhile are left out.
        """
        before, after = self._before, _look(self._proc)
        both = before.tasks.keys() & after.tasks.keys()
        ran = sum(after.tasks[one][0] - before.tasks[one][0] for one in both)
        waited = sum(after.tasks[one][1] - before.tasks[one][1] for one in both)
        stolen = after.stolen - before.stolen
        had = _part(ran, waited) * _part(after.used - before.used, stolen)
        return 1.0 - had


def _part(had: int, lost: int) -> float:
    """Of both, what was had."""
    return had / (had + lost) if had > 0 and lost > 0 else 1.0


def _look(proc: Path) -> _Look:
    return _Look(_tasks(proc / "self" / "task"), *_processors(proc / "stat"))


def _tasks(folder: Path) -> _Tasks:
    found: _Tasks = {}
    try:
        for task in folder.iterdir():
            try:
                ran, waited, *_ = (task / "schedstat").read_text(encoding="ascii").split()
                found[task.name] = int(ran), int(waited)
            except (OSError, ValueError):  # it has ended, or the kernel does not count
                continue
    except OSError:
        return {}
    return found


def _processors(file: Path) -> tuple[int, int]:
    """Ticks that were used, and that were stolen."""
    try:
        line = file.read_text(encoding="ascii").splitlines()[0]
        user, nice, system, _, _, irq, softirq, stolen, *_ = map(int, line.split()[1:])
        return user + nice + system + irq + softirq, stolen
    except (OSError, ValueError, IndexError):
        return 0, 0
