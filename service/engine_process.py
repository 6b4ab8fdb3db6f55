"""The worker: one child that owns the store and the device and runs one job at a time.

What a job says goes to its own event log; the socket carries commands one way, heartbeats and
telemetry the other, and nothing here ever waits for the API. When the API goes away, or asks with
SIGTERM, the step in hand is finished and committed, then the worker ends.
"""

import argparse
import faulthandler
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from headrace.engine import RunEvent, RunResult, StopReason, TrainConfig, Watch
from headrace.storage import VolumeConfig

from .asked_as import message_of
from .channel import Channel
from .event_log import EventLog
from .full_disk import is_full
from .ipc import Finished, Hello, Run, Stop
from .lockfile import LockFile
from .pulse import Pulse, rss_bytes
from .run_events import failure_event, out_of_space_event, result_event, stopped_early
from .run_limits import RunLimits
from .tracking import Trackers

DEFAULT_ENGINE = "headrace.engine:run_job"
EXIT_RENEW = 75  # a run failed: its leftovers go with the process, a fresh one takes the next job
EXIT_DEVICE = 76  # the device is in an unknown state: the job resumes in a fresh process

log = logging.getLogger("headrace.worker")


class RunJob(Protocol):
    """The engine's entry point: creates or resumes the store `name`, trains, exports."""

    def __call__(
        self,
        config: TrainConfig,
        *,
        run_dir: Path,
        name: str,
        emit: Callable[[RunEvent], None],
        poll: Callable[[], StopReason | None],
        watch: Watch = ...,
    ) -> RunResult: ...


class Commands:
    """What the API and signals have asked for, read by the run at its step boundaries."""

    def __init__(self) -> None:
        self.runs: SimpleQueue[Run | None] = SimpleQueue()
        self.shutdown = False
        self._stops: dict[str, StopReason] = {}

    def listen(self, channel: Channel) -> None:
        """Take messages until the API goes away, which is a request to shut down."""
        while (message := channel.receive()) is not None:
            if isinstance(message, Run):
                self._stops.pop(message.job_id, None)
                self.runs.put(message)
            elif isinstance(message, Stop):
                self._take_stop(message)
        self.request_shutdown()

    def request_shutdown(self) -> None:
        """End at the next step boundary, or at once when no job runs. Safe in a signal handler."""
        self.shutdown = True
        self.runs.put(None)

    def stop_reason(self, job_id: str) -> StopReason | None:
        """Why that job should end now; what a user asked goes before a shutdown."""
        return self._stops.get(job_id) or ("shutdown" if self.shutdown else None)

    def _take_stop(self, message: Stop) -> None:
        if message.reason == "shutdown":
            self.request_shutdown()
        elif message.job_id:
            self._stops[message.job_id] = message.reason


def serve(channel: Channel, engine: RunJob, *, beat_seconds: float = 1.0) -> int:
    """Run jobs until asked to end; returns the exit status of the process."""
    commands = Commands()
    _end_on_signals(commands)
    threading.Thread(target=commands.listen, args=(channel,), name="commands", daemon=True).start()
    with Pulse(channel, beat_seconds) as pulse:
        channel.send(Hello(pid=os.getpid(), rss_bytes=rss_bytes()))
        while not commands.shutdown:
            run = commands.runs.get()
            if run is not None:
                status = run_one(run, engine, commands, pulse)
                if status != EXIT_DEVICE:
                    channel.send(Finished(job_id=run.job_id, leaving=status != 0))
                if status:
                    return status
    return 0


def run_one(run: Run, engine: RunJob, commands: Commands, pulse: Pulse) -> int:
    """Run one job to its end and log how it ended; 0 when this process may take another."""
    job_dir = Path(run.job_dir)
    with (
        _output_to(job_dir / "worker.log"),
        EventLog(job_dir / "events.jsonl", after_seq=run.after_seq) as events,
        Trackers(run.integrations, job_dir) as trackers,
    ):

        def emit(event: RunEvent) -> None:
            events.append(event)
            pulse.note(event)
            for warning in trackers.offer(event):
                events.append(warning)

        limits = RunLimits(None, log=job_dir, places=())

        def poll() -> StopReason | None:
            pulse.advance()
            return commands.stop_reason(run.job_id) or limits.check(emit)

        try:
            config = TrainConfig.from_dict(json.loads(Path(run.spec_path).read_text()))
            limits = limits_of(config, job_dir, run.limits)
            pulse.start_job(run.job_id, on_cpu=config.device == "cpu")
            emit(RunEvent(type="phase", message="starting"))  # no result is the last word now
            if reason := poll():
                emit(stopped_early(reason))
                return 0
            result = engine(
                config,
                run_dir=job_dir,
                name=run.state_name,
                emit=emit,
                poll=poll,
                watch=pulse.watch,
            )
            emit(result_event(result))
            return 0
        except Exception as error:
            log.exception("job %s failed", run.job_id)
            if _device_is_lost(error):
                emit(RunEvent(type="message", level="error", message=message_of(error)))
                return EXIT_DEVICE
            emit(out_of_space_event(error) if is_full(error) else failure_event(error))
            return EXIT_RENEW
        finally:
            pulse.end_job()
            gc.collect()


def limits_of(config: TrainConfig, job_dir: Path, limits: Mapping[str, Any] | None) -> RunLimits:
    """The job's limits, over its volumes and its folder."""
    volumes = [VolumeConfig.parse(text).path for text in config.volumes]
    return RunLimits(limits, log=job_dir / "events.jsonl", places=[*volumes, job_dir])


def _device_is_lost(error: Exception) -> bool:
    """After a CUDA fault every later call of this process fails too, memory errors excepted."""
    lost = type(error).__name__ == "AcceleratorError" or str(error).startswith("CUDA error")
    return lost and "out of memory" not in str(error)


def _end_on_signals(commands: Commands) -> None:
    """The first SIGTERM asks for an orderly end, the second one ends the process at once."""

    def handle(number: int, frame: object) -> None:
        if commands.shutdown:
            os._exit(128 + number)
        commands.request_shutdown()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Send stdout and stderr, native code's included, to the end of that file."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for target, source in zip((1, 2), saved, strict=True):
            os.dup2(source, target)
            os.close(source)


def load_engine(name: str) -> RunJob:
    """Import `module:function`; ImportError or AttributeError when it is not there."""
    module, _, function = name.partition(":")
    engine: RunJob = getattr(import_module(module), function)
    return engine


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: `--fd` is the worker's end of the socket pair, inherited."""
    parser = argparse.ArgumentParser(prog="headrace.service.engine_process")
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--engine", default=DEFAULT_ENGINE, help="module:function that runs a job")
    options = parser.parse_args(arguments)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the supervisor asks for the stacks of a hung worker
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    sys.setswitchinterval(0.0005)  # the I/O threads are short: let them in quickly
    with LockFile(options.data_dir / "worker.lock"):
        return serve(Channel(options.fd), load_engine(options.engine))


if __name__ == "__main__":
    sys.exit(main())
