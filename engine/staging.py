"""Staging slots in host memory, which NVMe records pass through: taken, used, given back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

from headrace.storage import Fence, HostSlot


@dataclass(slots=True)
class Staging:
    """A staging slot, and the copy that must end before it is used again."""

    slot: HostSlot
    busy_until: Fence = field(default_factory=Fence)


class StagingPool:
    """Back-pressure by waiting: whoever wants a slot waits until one is given back."""

    def __init__(self, slots: Sequence[HostSlot]) -> None:
        self._free: SimpleQueue[Staging] = SimpleQueue()
        for slot in slots:
            self._free.put(Staging(slot))

    def take(self) -> Staging:
        """Wait for a slot, and for the copy out of it."""
        staging = self._free.get()
        staging.busy_until.wait()
        return staging

    def give(self, staging: Staging) -> None:
        """The slot may be taken again, once its copy has ended."""
        self._free.put(staging)

    @contextmanager
    def borrow(self) -> Iterator[Staging]:
        """A slot for the length of a block."""
        staging = self.take()
        try:
            yield staging
        finally:
            self.give(staging)
