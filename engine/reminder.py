"""A long phase says from time to time that it goes on: who says nothing is taken for dead."""

from time import monotonic

from .report import Emit, RunEvent

REMIND_SECONDS = 10.0


class Reminder:
    """Tells of a phase now, and again when it is called after a while."""

    def __init__(self, emit: Emit, message: str, step: int) -> None:
        self._event = RunEvent(type="phase", message=message, step=step)
        self._emit = emit
        self._next = 0.0
        self()

    def __call__(self) -> None:
        """The phase goes on."""
        now = monotonic()
        if now >= self._next:
            self._next = now + REMIND_SECONDS
            self._emit(self._event)
