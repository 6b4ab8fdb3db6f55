"""One engine process as its supervisor holds it: spawn, messages, end, and what it died of."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .channel import PACKET_BYTES, channel_pair
from .ipc import Message, decode, encode

REAP_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a process ended. `status` is its exit status, below 0 for a signal."""

    status: int
    cause: str


class Child:
    """A running engine process, leader of its own process group, with its output in a file.

    `on_message` is called in the event loop for each of its messages. Constructed inside a
    running loop; `reap` must be awaited once it is gone.
    """

    def __init__(
        self, arguments: list[str], *, output: Path, on_message: Callable[[Message], None]
    ) -> None:
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self._oom_kills = oom_kills()
        self._unsent: deque[bytes] = deque()
        self._socket, theirs = channel_pair()
        with theirs, output.open("ab") as log:
            self._process = subprocess.Popen(
                [*arguments, "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=child_environment(WORKER_ENVIRONMENT),
            )
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._read)

    @property
    def pid(self) -> int:
        """Its process id, and that of its group."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Send a command, as soon as the process has room for it; in order, and none is lost.

        To a process that has gone nothing is sent, which `gone` tells.
        """
        if not self._gone.is_set():
            self._unsent.append(encode(message))
            self._flush()

    async def gone(self, *, within_seconds: float) -> bool:
        """Wait for its end at most that long; whether it has come."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), within_seconds)
        return self._gone.is_set()

    def dump_stacks(self) -> None:
        """Let it write the stacks of its threads to its log."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)

    def kill(self) -> None:
        """End it and what it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    async def reap(self) -> Death:
        """Collect its exit status; one that has closed its socket and lingers is ended."""
        self._gone.set()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        try:
            status = await asyncio.to_thread(self._process.wait, REAP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            status = await asyncio.to_thread(self._process.wait)
        return Death(status=status, cause=describe_end(status, oom_kills() - self._oom_kills))

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._socket.send(self._unsent[0], socket.MSG_NOSIGNAL)
                self._unsent.popleft()
        except BlockingIOError:  # it reads slowly: go on when it has read
            self._loop.add_writer(self._socket, self._flush)
            return
        except (BrokenPipeError, ConnectionResetError):
            self._unsent.clear()
        self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            packet = self._socket.recv(PACKET_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            packet = b""
        if packet:
            self._on_message(decode(packet))
        else:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._gone.set()


# glibc keeps freed memory in arenas of its threads and raises its mmap threshold by itself. Fixed
# thresholds cost an eighth of the speed in page faults, but keep 100 MB less resident: without
# them the demo's worker came within its budget's last half per cent (LOG.md).
MALLOC_THRESHOLD_BYTES, MALLOC_ARENAS = 1 << 20, 2
WORKER_ENVIRONMENT = {
    "MALLOC_ARENA_MAX": str(MALLOC_ARENAS),
    "MALLOC_MMAP_THRESHOLD_": str(MALLOC_THRESHOLD_BYTES),
    "MALLOC_TRIM_THRESHOLD_": str(MALLOC_THRESHOLD_BYTES),
}


def become_like_a_worker() -> None:
    """Take memory as a worker does, in a process that trains or measures in the foreground: its
    speed and its resident memory are then those of a job of the daemon."""
    from headrace.engine import fix_thresholds

    fix_thresholds(MALLOC_THRESHOLD_BYTES, num_arenas=MALLOC_ARENAS)


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Our environment for a Python child that must import what we can import."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **extra}


def describe_end(status: int, new_oom_kills: int) -> str:
    """An exit status in words; `new_oom_kills` is how often the kernel ran out of memory since."""
    if status >= 0:
        return f"exit status {status}"
    name = signal.Signals(-status).name
    if status == -signal.SIGKILL and new_oom_kills > 0:
        return f"{name}, most likely by the kernel, which ran out of memory; lower host_bytes"
    return f"signal {name}"


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0
