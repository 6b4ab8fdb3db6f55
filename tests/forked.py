"""A function in a process of its own that has the engine loaded already.

A fresh interpreter spends seconds on importing torch. One server for each process of the test run
imports what is asked for once, has no threads, and forks a child for every call. Where a module has
a function `before_fork`, the server calls it first: what takes long and is kept, as a compiled
kernel is, it does once for all children.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

_one_at_a_time = Lock()


def exit_status(
    function: str, *arguments: object, argv: Sequence[str] = (), output: Path | None = None
) -> int:
    """How a call of "module:function" with arguments as JSON has them ended: 0 or the number that
    it returned, 1 with a traceback on standard error, or minus the signal that killed it.

    `argv` is its command line. What it prints goes to the file `output`, with what it says on
    standard error; without one all of that goes to standard error.
    """
    server = _server()
    assert server.stdin and server.stdout
    with _one_at_a_time:
        call = [function, arguments, [function, *argv], str(output) if output else None]
        server.stdin.write(json.dumps(call) + "\n")
        server.stdin.flush()
        status = server.stdout.readline()
    assert status, f"the process that forks has ended with {server.wait()}; see standard error"
    return int(status)


def run_forked(module: str, arguments: Sequence[str], *, limit: float) -> dict[str, Any]:
    """As `bench.contest.run_apart`, but for the seconds of a fresh process's imports and for the
    limit: pytest's own is the limit here."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output"
        status = exit_status(f"{module}:main", argv=arguments, output=output)
        said = output.read_text()
    print(said, file=sys.stderr)
    row: dict[str, Any] = {"date": "2026-11-30T00:00:00+00:00", "wall_seconds": 0.0}
    if status == 0:
        return {**row, "result": json.loads(said.strip().splitlines()[-1])}
    return {**row, "failed": str(status), "said": said}


@cache
def _server() -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    server = subprocess.Popen(
        [sys.executable, "-m", "forked"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    atexit.register(server.communicate)  # the end of its input ends it
    return server


def main() -> None:
    """Fork for every call on standard input; each one's exit status on standard output."""
    for line in sys.stdin:
        function, arguments, argv, output = json.loads(line)
        module, _, name = function.partition(":")
        home = import_module(module)
        call = getattr(home, name)
        getattr(home, "before_fork", _nothing)()
        child = os.fork()
        if child == 0:
            _run(call, arguments, argv, output)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _nothing() -> None:
    pass


def _run(call: "object", arguments: list[object], argv: list[str], output: str | None) -> None:
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if output is not None:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, sys.stdout.fileno())
        os.dup2(file, sys.stderr.fileno())
    sys.argv = argv
    status = 1
    try:
        assert callable(call)
        result = call(*arguments)
        status = result if isinstance(result, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
