"""A daemon of the demo's own: a real `headrace serve` process with small budgets."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

STOP_SECONDS = 120


class Daemon:
    """Start with the block, end with it (SIGTERM) unless `keep`. `url` is where it listens."""

    def __init__(
        self,
        home: Path,
        *,
        models_dir: Path,
        device_bytes: int,
        host_bytes: int,
        keep: bool = False,
    ) -> None:
        self.log = home / "daemon.log"
        self.keep = keep
        self.url = ""
        self.pid = 0
        self._arguments = [
            *(sys.executable, "-m", "headrace.service", "serve", "--json"),
            *("--data-dir", str(home / "data")),
            *("--models-dir", str(models_dir)),
            *("--port", "0"),
            *("--device", "cpu"),
            *("--device-bytes", str(device_bytes)),
            *("--host-bytes", str(host_bytes)),
        ]

    def __enter__(self) -> Self:
        # its own session: Ctrl-C in the terminal ends the demo, and the demo ends the daemon
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._arguments,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        assert self._process.stdout
        first = self._process.stdout.readline()
        if not first:
            raise SystemExit(f"the daemon did not start:\n{self.log.read_text()}")
        hello = json.loads(first)
        self.url, self.pid = hello["url"], hello["pid"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.keep and error is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
