"""The look at a Parquet file, in a process of its own with a limit on its memory.

A file of a few kilobytes can stand for more memory than the box has, and no reader of Parquet says
so before it takes it. In the API's own process that would end the daemon; here it ends a refusal.
"""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from headrace.engine import DataProblem, Objective, too_much_memory

from .logs import get_logger

log = get_logger("headrace.api")
MEMORY_BYTES = 1 << 30  # of address space beyond what the process has at its start
MOST_SAID = 2000  # characters of what it says as it fails, in the log
_NO_MEMORY = re.compile(r"memory|alloc|failed to map|start new thread", re.IGNORECASE)
WAIT_SECONDS = 120  # for a page that takes long to unpack; the look itself keeps its own time
# Arrow takes memory by malloc, and by one thread, so that the limit is met by what the file asks.
ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "ARROW_IO_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def look_apart(
    path: Path, kind: Objective, columns: Mapping[str, str]
) -> tuple[Sequence[str], dict[str, Any]]:
    """What `look_here` says, the survey as its fields. The same file is looked at once.

    DataProblem also when it takes more than MEMORY_BYTES, or longer than WAIT_SECONDS.
    """
    state = path.stat()
    stamp = (state.st_ino, state.st_size, state.st_mtime_ns)
    return _look(path, stamp, kind, tuple(sorted(columns.items())))


@lru_cache(maxsize=64)
def _look(
    path: Path, _stamp: object, kind: Objective, columns: tuple[tuple[str, str], ...]
) -> tuple[Sequence[str], dict[str, Any]]:
    asked = json.dumps({"path": str(path), "kind": kind, "columns": dict(columns)})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "headrace.service.survey_process"],
            input=asked, capture_output=True, text=True, timeout=WAIT_SECONDS,
            env={**os.environ, **ENVIRONMENT},
        )  # fmt: skip
    except subprocess.TimeoutExpired as e:
        text = f"{path.name}: its Parquet data was read for {WAIT_SECONDS} s and no row came"
        raise DataProblem(f"{text}; write the file anew with smaller pages") from e
    if done.returncode:
        said = done.stderr[-MOST_SAID:]
        log.warning("looking at a file failed", path=str(path), status=done.returncode, said=said)
        raise DataProblem(_why(path.name, done.returncode, said))
    told = json.loads(done.stdout)
    if refused := told.get("refused"):
        raise DataProblem(refused)
    return tuple(told["problems"]), told["survey"]


def _why(name: str, status: int, said: str) -> str:
    """Why the process ended without an answer, by its exit status and its standard error.

    A library that gets no memory ends it, each in its own way; a Python error has its last line.
    """
    last = said.strip().rpartition("\n")[2]
    if status != 1 or not last or _NO_MEMORY.search(last):
        return too_much_memory(name)
    why = f"{name}: its Parquet data cannot be read ({last:.300})"
    return f"{why}; write the file anew, or its rows as JSON, one object a line"


def main() -> None:
    """Read what is asked from standard input, and print what was found as one line of JSON."""
    from .survey import look_here

    asked = json.load(sys.stdin)
    _limit_memory()
    try:
        problems, survey = look_here(Path(asked["path"]), asked["kind"], asked["columns"])
    except DataProblem as e:
        print(json.dumps({"refused": str(e)}))
    else:
        print(json.dumps({"problems": problems, "survey": asdict(survey)}))


def _limit_memory() -> None:
    """No more address space than now and MEMORY_BYTES; no core file where that ends the process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
