"""A real daemon process, for tests of the whole line."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STOP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class RunningDaemon:
    """Where a daemon listens, its process, and how it was started."""

    url: str
    process: subprocess.Popen[bytes]
    command: list[str]
    environment: dict[str, str]

    def kill(self) -> None:
        """End it with SIGKILL, as a power cut would."""
        self.process.kill()
        self.process.wait()


@contextmanager
def running_daemon(
    data_dir: Path, models_dir: Path, options: Sequence[str]
) -> Iterator[RunningDaemon]:
    """`headrace serve` on a free port of this machine; SIGTERM at the end of the block."""
    data_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "headrace.service", "serve", "--json", "--port", "0"]
    command += ["--device", "cpu", "--data-dir", str(data_dir), "--models-dir", str(models_dir)]
    command += options
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    log_path = data_dir / "daemon.log"
    with (
        log_path.open("ab") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment) as process,
    ):
        assert process.stdout
        first = process.stdout.readline()
        assert first, log_path.read_text()
        try:
            yield RunningDaemon(json.loads(first)["url"], process, command, environment)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(STOP_SECONDS)
                finally:
                    process.kill()
