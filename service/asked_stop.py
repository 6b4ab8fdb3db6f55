"""What a user asked of a running job, kept until it is done: no death in between undoes it."""

import logging
from pathlib import Path
from typing import get_args

from headrace.engine import StopReason

from .json_file import read_or_forget, write_json

log = logging.getLogger(__name__)


class AskedStop:
    """A small file in the job's folder, there from the request until the job has stopped. Blocking.

    A drive without room takes none: the job is stopped all the same, unless the daemon dies first.
    """

    def __init__(self, job_dir: Path) -> None:
        self._path = job_dir / "stop.json"

    def keep(self, reason: StopReason) -> None:
        """Write down that the job is to be cancelled or paused."""
        try:
            write_json(self._path, {"reason": reason})
        except OSError as error:
            log.warning("cannot write down that %s is wanted: %s", reason, error)

    def read(self) -> StopReason | None:
        """What was asked and is not done yet."""
        reason = read_or_forget(self._path).get("reason")
        return reason if reason in get_args(StopReason) else None

    def forget(self) -> None:
        """It is done."""
        self._path.unlink(missing_ok=True)
