"""Trackers: programs that draw a run's numbers elsewhere. None of them can end or slow a run.

A tracker works on a thread of its own, behind a queue that never makes the run wait. What goes
wrong there is told once, as a warning of the job, and the run goes on without it.
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, Self

from headrace.engine import RunEvent
from headrace.storage import install_line

from .asked_as import message_of
from .errors import ApiError
from .tensorboard_tracker import open_tensorboard

QUEUE_EVENTS = 10_000  # a tracker that is so far behind misses what comes
CLOSE_SECONDS = 5.0  # that the end of a run gives a tracker to write what it still has

log = logging.getLogger("headrace.worker")


class Tracker(Protocol):
    """What draws a run's numbers. Each call may take its time, and raise what it likes."""

    def take(self, event: RunEvent) -> None:
        """Note an event of the run, in the order in which they come."""

    def close(self) -> None:
        """Write what is left."""


Make = Callable[[], Tracker]

# By `type` of an integration: what makes its tracker for a job's folder, and what has to be
# installed, by module and by extra.
KNOWN: dict[str, tuple[Callable[[Path], Tracker], str, str]] = {
    "tensorboard": (open_tensorboard, "tensorboard", "tensorboard"),
}


class Tracking:
    """One tracker at work. `make` is called on its thread, too."""

    def __init__(self, name: str, make: Make, *, queue_events: int = QUEUE_EVENTS) -> None:
        self._name = name
        self._queue: queue.Queue[RunEvent | None] = queue.Queue(queue_events)
        self._trouble: str | None = None
        self._is_told = False
        self._thread = threading.Thread(target=self._work, args=(make,), name=name, daemon=True)
        self._thread.start()

    def offer(self, event: RunEvent | None) -> None:
        """Hand over an event without waiting; None is the last word."""
        if self._trouble is None:
            try:
                self._queue.put_nowait(event)
            except queue.Full:
                self._trouble = f"it is more than {self._queue.maxsize} events behind"

    def news(self) -> str | None:
        """The tracker's trouble, if there is any and it was not told yet."""
        if self._trouble is None or self._is_told:
            return None
        self._is_told = True
        return f"{self._name} gets no more of this run, which goes on: {self._trouble}"

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Let it write what it still has, for so long at most; what fails now is in the log."""
        self.offer(None)
        if self._trouble is None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                self._trouble = f"it has not ended within {seconds:g} s"
        if trouble := self.news():
            log.warning(trouble)

    def _work(self, make: Make) -> None:
        try:
            tracker = make()
            while (event := self._queue.get()) is not None and self._trouble is None:
                tracker.take(event)
            tracker.close()
        except Exception as error:
            log.exception("%s failed", self._name)
            self._trouble = message_of(error)


class Trackers:
    """Those that a job asks for, by the `integrations` of its create body; a context manager."""

    def __init__(self, integrations: Sequence[Mapping[str, Any]] | None, job_dir: Path) -> None:
        names = [one["type"] for one in integrations or ()]
        self._all = [Tracking(name, partial(KNOWN[name][0], job_dir)) for name in names]

    def offer(self, event: RunEvent) -> list[RunEvent]:
        """Hand an event to all of them; the warnings that are to be told now.

        None with the run's result, which is the last word of a log.
        """
        for one in self._all:
            one.offer(event)
        if event.type == "result":
            return []
        told = [trouble for one in self._all if (trouble := one.news())]
        return [RunEvent(type="message", level="warn", message=trouble) for trouble in told]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._all:
            one.close()


def check_integrations(body: Mapping[str, Any]) -> None:
    """ApiError for a tracker whose package is not installed here."""
    for i, one in enumerate(body.get("integrations") or ()):
        _, module, extra = KNOWN[one["type"]]
        if find_spec(module) is None:
            message = f"{one['type']} is not installed here: {install_line(extra)}."
            raise ApiError(400, message, param=f"integrations.{i}.type", code="not_installed")
