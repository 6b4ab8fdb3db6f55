"""Regular expressions of users, tried where they can be stopped: `re` itself cannot be.

An expression such as `(a+)+b` can take for ever on a name of thirty characters, and holds up the
whole process meanwhile. So it first runs over all the names in a process of its own, which the
system ends when its time is over; what has passed there is as quick when it is used.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache

MAX_CHARACTERS = 500
SECONDS = 0.5  # of the processor, for all names; some tens of thousands take a tenth of that
# SIGVTALRM ends a process that has no handler for it, whatever it does at the time.
_CHILD = f"""
import json, re, signal, sys
pattern, names = json.load(sys.stdin)
signal.setitimer(signal.ITIMER_VIRTUAL, {SECONDS})
try:
    match = re.compile(pattern).fullmatch
    for name in names:
        match(name)
except (re.error, OverflowError, RecursionError) as error:
    print(json.dumps(str(error)))
"""


def fault_of(pattern: str, names: Sequence[str]) -> str | None:
    """Why an expression cannot be held against these names, as words that follow it; None: it can.

    Takes a process's start, the first time that it is asked.
    """
    if len(pattern) > MAX_CHARACTERS:
        return f"has {len(pattern)} characters; wanted {MAX_CHARACTERS} or fewer"
    return _tried(pattern, tuple(names))


@lru_cache(maxsize=16)
def _tried(pattern: str, names: tuple[str, ...]) -> str | None:
    asked = json.dumps([pattern, names])
    command = [sys.executable, "-I", "-S", "-c", _CHILD]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if done.returncode not in (0, -signal.SIGVTALRM):
        return f"cannot be tried: {' '.join(done.stderr.split())[-200:]} (exit {done.returncode})"
    if done.returncode:
        return "takes too long; write it without repetitions within repetitions, or name modules"
    return f"is no expression: {json.loads(done.stdout)}" if done.stdout else None
