"""What the store's road is held against: fio, and aiofiles as a web server would use it."""

import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiofiles

from .output import CliError, Exit

if TYPE_CHECKING:
    from headrace.storage import LoadCase

HUGE_PAGE_BYTES = 2 << 20
_POOL = Path("/proc/sys/vm/nr_hugepages")
_FREE = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
_KINDS = {"read": "read", "write": "write", "mixed": "rw"}


def fio_version() -> str | None:
    """The version of fio on this box; None when it is not installed."""
    if shutil.which("fio") is None:
        return None
    done = subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def fio_memory_bytes(cases: "Sequence[LoadCase]") -> int:
    """Twice the buffers of the largest case, or of 8 calls of 4 MiB: fio asks for more."""
    largest = max(case.depth * (case.block_bytes + 2 * HUGE_PAGE_BYTES) for case in cases)
    return 2 * max(largest, 8 * 4 * HUGE_PAGE_BYTES)


@contextmanager
def huge_pages(num_bytes: int) -> Iterator[bool]:
    """Whether the kernel's pool has huge pages for `num_bytes`, which fio's buffers come from.

    Where this process may, it enlarges the pool for as long as the block runs.
    """
    wanted = -(-num_bytes // HUGE_PAGE_BYTES)
    try:
        before, free = int(_POOL.read_text()), int(_FREE.read_text())
        missing = max(0, wanted - free)
        if missing:
            _POOL.write_text(str(before + missing))
    except (OSError, ValueError):
        yield False
        return
    try:
        yield int(_FREE.read_text()) >= wanted
    finally:
        if missing:  # others may have changed it meanwhile: take back what was added
            _POOL.write_text(str(max(0, int(_POOL.read_text()) - missing)))


def fio_rate(
    path: Path,
    case: "LoadCase",
    *,
    file_bytes: int,
    num_bytes: int,
    engine: str = "psync",
    huge: bool,
) -> float:
    """Bytes a second that fio moves in calls of the same size and depth.

    `psync` has a thread for each call in flight, as the store has; `io_uring` one for all.
    """
    jobs = case.depth if engine == "psync" else 1
    part = file_bytes // jobs
    command = [
        "fio", "--name=bench", f"--filename={path}", "--direct=1", "--thread",
        "--allow_file_create=0", f"--ioengine={engine}", f"--numjobs={jobs}",
        f"--iodepth={case.depth // jobs}", f"--bs={case.block_bytes}", f"--rw={_KINDS[case.kind]}",
        f"--size={part}", f"--offset_increment={part}", f"--io_size={num_bytes // jobs}",
        "--group_reporting", "--output-format=json",
        *(["--mem=mmaphuge", "--iomem_align=2m"] if huge else []),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CliError(f"fio failed: {(done.stderr or done.stdout).strip()}", code=Exit.FAILED)
    [job] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    parts: list[dict[str, Any]] = [job[kind] for kind in ("read", "write")]
    milliseconds = max(part["runtime"] for part in parts)
    return float(1000 * sum(part["io_bytes"] for part in parts) / milliseconds)


def aiofiles_rate(path: Path, case: "LoadCase", *, file_bytes: int, num_bytes: int) -> float:
    """Bytes a second of `depth` tasks that read or write through aiofiles, page cache and all.

    Reads start with nothing of the file in the page cache; writes end with a sync.
    """
    with path.open("rb") as file:
        os.fdatasync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.monotonic()
    moved = asyncio.run(_move(path, case, file_bytes // case.depth, num_bytes // case.depth))
    if case.kind == "write":
        with path.open("rb") as file:
            os.fdatasync(file.fileno())
    return moved / (time.monotonic() - start)


async def _move(path: Path, case: "LoadCase", part: int, num_bytes: int) -> int:
    async def one(index: int) -> int:
        moved = 0
        async with aiofiles.open(path, "rb" if case.kind == "read" else "r+b") as file:
            await file.seek(index * part)
            data = bytes(case.block_bytes)
            while moved < min(part, num_bytes):
                if case.kind == "read":
                    data = await file.read(case.block_bytes)
                else:
                    await file.write(data)
                moved += len(data)
        return moved

    return sum(await asyncio.gather(*(one(i) for i in range(case.depth))))
