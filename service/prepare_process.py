"""The prepare child: tokenizes a job's files and fixes its plan, on the CPU, while others train.

It reads `prepare.json` in the job's folder, tells what it does in the job's event log, and leaves
`prepared.json` (a TrainConfig) when the job can run, `refusal.json` when it cannot and why. Who
started it renames the former to `spec.json` once it has read the log: the job may run from then on.
"""

import argparse
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

from headrace.engine import RunEvent, TrainConfig

from .event_log import EventLog
from .json_file import write_json
from .prepare_request import Emit, PrepareRequest, Refused

DEFAULT_PREPARE = "headrace.service.preparation:prepare_job"

log = logging.getLogger("headrace.prepare")


def run(job_dir: Path, prepare: Callable[[PrepareRequest, Emit], TrainConfig]) -> int:
    """Prepare the job of that folder; the exit status of the process."""
    request = PrepareRequest.read(job_dir)
    with EventLog(job_dir / "events.jsonl", after_seq=request.after_seq) as events:
        try:
            config = prepare(request, events.append)
        except Refused as refusal:
            log.info("refused: %s", refusal)
            if refusal.report:  # the refusal itself is told by the job's move, once
                message = f"{refusal.param}: the report on its rows"
                events.append(
                    RunEvent(type="message", message=message, data=refusal.report.to_dict())
                )
            error = {
                "code": refusal.code,
                "message": request.named(str(refusal)),
                "param": refusal.param,
            }
            write_json(job_dir / "refusal.json", error)
            return 0
        write_json(job_dir / "prepared.json", config.to_dict())
        return 0


def _end_with_parent() -> None:
    """Go when the API goes, which stdin tells: what was not finished is simply done again."""

    def watch() -> None:
        os.read(0, 1)  # nothing is ever written: it returns when the other end is closed
        os._exit(0)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: the job's folder, and the function that prepares."""
    parser = argparse.ArgumentParser(prog="headrace.service.prepare_process")
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--prepare", default=DEFAULT_PREPARE, help="module:function")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    _end_with_parent()
    module, _, function = options.prepare.partition(":")
    return run(options.job_dir, getattr(import_module(module), function))


if __name__ == "__main__":
    sys.exit(main())
