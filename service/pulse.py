"""The worker's pulse: proof of life, a count that grows while the job moves, newest telemetry."""

import threading
import time
from contextlib import suppress
from typing import Any, Self

from headrace.engine import Look, RunEvent

from .channel import Channel
from .ipc import Heartbeat, Telemetry
from .live_rates import LiveRates

IO_UNIT_BYTES = 1 << 24
SHOWN = ("step", "total_steps", "loss", "step_seconds")


class Pulse:
    """Beats from its own thread, so that the training loop neither sends nor waits.

    `progress` counts events, polls and 16 MiB units of I/O. Whole seconds of CPU time count too on
    a CPU run, and until the first step is done, which may compile kernels: a CPU that computes is
    not hung. In the steps of a GPU run they do not, since a hung device makes the CPU spin.
    """

    def __init__(self, channel: Channel, beat_seconds: float) -> None:
        self._channel = channel
        self._beat_seconds = beat_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)
        self._job_id: str | None = None
        self._on_cpu = self._counts_cpu = True
        self._count = 0
        self._telemetry: dict[str, Any] = {}
        self._look: Look | None = None
        self._rates = LiveRates()
        self._bytes_at_start = rss_bytes()

    def start_job(self, job_id: str, *, on_cpu: bool) -> None:
        """From now on beats speak of this job."""
        _reset_peak_rss()
        self._telemetry = {}
        self._on_cpu = on_cpu
        self._counts_cpu = True
        self._job_id = job_id

    def end_job(self) -> None:
        """From now on beats speak of no job."""
        self._job_id = None

    def watch(self, look: Look | None) -> None:
        """From now on beats tell of the traffic that `look` sees; None: there is none to see."""
        self._rates = LiveRates()
        self._look = look

    def advance(self) -> None:
        """The job moved."""
        self._count += 1

    def note(self, event: RunEvent) -> None:
        """The job moved and said so: the next beat carries its newest numbers."""
        self._count += 1
        if event.type == "metrics":
            self._counts_cpu = self._on_cpu
        newest = {name: event.data[name] for name in SHOWN if name in event.data}
        phase = {"phase": event.message} if event.type == "phase" else {}
        self._telemetry = {**self._telemetry, **newest, **phase}

    def progress(self) -> int:
        """A count that stands still only when nothing happens."""
        cpu_seconds = int(time.process_time()) if self._counts_cpu else 0
        return self._count + _io_bytes() // IO_UNIT_BYTES + cpu_seconds

    def _beat(self) -> None:
        while not self._ended.wait(self._beat_seconds):
            job_id = self._job_id
            self._channel.send(Heartbeat(progress=self.progress(), job_id=job_id))
            if job_id:
                data = {**self._telemetry, **self._memory(), **self._traffic()}
                self._channel.send(Telemetry(job_id=job_id, data=data))

    def _memory(self) -> dict[str, int]:
        """Resident memory; `host_bytes` is the most that the job took of its budget."""
        peak = rss_bytes("VmHWM")
        taken = max(0, peak - self._bytes_at_start)
        return {"rss_bytes": rss_bytes(), "rss_peak_bytes": peak, "host_bytes": taken}

    def _traffic(self) -> dict[str, Any]:
        look = self._look
        return self._rates.add(look(), time.monotonic()) if look else {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def rss_bytes(field: str = "VmRSS") -> int:
    """This process's resident memory in bytes; `VmHWM` for its peak."""
    return _proc_number("/proc/self/status", field + ":") * 1024


def _reset_peak_rss() -> None:
    """Let VmHWM start again from here; a kernel without that keeps the peak since the start."""
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _io_bytes() -> int:
    return _proc_number("/proc/self/io", "read_bytes:") + _proc_number(
        "/proc/self/io", "write_bytes:"
    )


def _proc_number(path: str, field: str) -> int:
    with open(path, encoding="ascii") as file:
        for line in file:
            if line.startswith(field):
                return int(line.split()[1])
    raise ValueError(f"{path} has no line {field}")
