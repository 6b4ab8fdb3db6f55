"""A function in a process of its own that has the engine loaded already.

A fresh interpreter spends seconds on importing torch. One server for each process of the test run
imports what is asked for once, has no threads, and forks a child for every call.
"""

import atexit
import json
import os
import subprocess
import sys
import traceback
from functools import cache
from importlib import import_module


def exit_status(function: str, *arguments: object) -> int:
    """How a call of "module:function" with arguments as JSON has them ended: 0, 1 with a traceback
    on standard error, or minus the signal that killed it."""
    server = _server()
    assert server.stdin and server.stdout
    server.stdin.write(json.dumps([function, arguments]) + "\n")
    server.stdin.flush()
    status = server.stdout.readline()
    assert status, f"the process that forks has ended with {server.wait()}; see standard error"
    return int(status)


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
        function, arguments = json.loads(line)
        module, _, name = function.partition(":")
        call = getattr(import_module(module), name)
        child = os.fork()
        if child == 0:
            _run(call, arguments)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(call: "object", arguments: list[object]) -> None:
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    status = 1
    try:
        assert callable(call)
        call(*arguments)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
