"""How much may be written to the drives of a store in its life."""

from collections.abc import Callable

from .errors import WriteBudgetSpent


class WriteBudget:
    """Says no to a step that would go beyond `limit_bytes` of life-long writes; None: no limit.

    What a step writes is known from the largest one so far.
    """

    def __init__(self, limit_bytes: int | None, written_bytes: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._written_bytes = written_bytes
        self._at_last_step: int | None = None
        self._largest_step = 0

    def check(self) -> None:
        """A step is about to begin: WriteBudgetSpent when its writes would exceed the budget."""
        if self._limit_bytes is None:
            return
        written = self._written_bytes()
        if self._at_last_step is not None:
            self._largest_step = max(self._largest_step, written - self._at_last_step)
        self._at_last_step = written
        if written + self._largest_step > self._limit_bytes:
            raise WriteBudgetSpent(
                written_bytes=written,
                limit_bytes=self._limit_bytes,
                step_bytes=self._largest_step,
            )
