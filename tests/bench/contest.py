"""Results as JSON lines that a bench adds to, and contenders in processes of their own.

A bench that was interrupted goes on where it stopped: what is in its results is left alone, what
failed is tried again.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import IO, Any

WORDS_OF_AN_ERROR = 1500
Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """The rows of a results file that did not fail; none when it does not exist."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if "failed" not in row]


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


class Clock:
    """Seconds left of those that a bench was given."""

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds

    @property
    def left(self) -> float:
        """Until the limit; negative behind it."""
        return self._end - monotonic()


def run_apart(module: str, arguments: Sequence[str], *, limit: float) -> Row:
    """`python -m module arguments` in a fresh process, so that none inherits memory.

    The last line that it prints is JSON and becomes `result`; what it says on its standard error
    is passed on as it comes. Otherwise `failed` says why, and `said` the end of that. With either,
    `date` and `wall_seconds`. What takes longer than `limit` seconds is ended, with its children.
    """
    date = datetime.now(UTC).isoformat(timespec="seconds")
    command = [sys.executable, "-m", module, *arguments]
    started = monotonic()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=_environment(),
        )
        assert child.stderr is not None
        said: list[str] = []
        listener = threading.Thread(target=_pass_on, args=(child.stderr, said), daemon=True)
        listener.start()
        try:
            status: int | str = child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            status = f"no result within {limit:.0f} s"
        listener.join()
        child.stderr.close()
        output.seek(0)
        last = output.read().decode().strip().splitlines()[-1:]
    row: Row = {"date": date, "wall_seconds": round(monotonic() - started, 1)}
    if status == 0 and last:
        return {**row, "result": json.loads(last[0])}
    return {**row, "failed": str(status), "said": "".join(said).strip()[-WORDS_OF_AN_ERROR:]}


def tell(line: str) -> None:
    """Say how far a contender is."""
    print(f"    {line}", file=sys.stderr, flush=True)


def _pass_on(lines: IO[bytes], said: list[str]) -> None:
    for line in lines:
        said.append(line.decode(errors="replace"))
        print(said[-1], end="", file=sys.stderr, flush=True)


def _environment() -> dict[str, str]:
    """This process's, and where `bench` is to be found, however it was found here."""
    known = os.environ.get("PYTHONPATH")
    tests = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (tests, known)))}
