"""The operations of a store that have not come to their end."""

import threading
from functools import partial

from .drives import DriveSet
from .errors import IoTimeout
from .future import Buffer, IoFuture


class UnderWay:
    """Makes the futures of a store, and remembers each until it is done."""

    def __init__(self, drives: DriveSet) -> None:
        self._drives = drives
        self._futures: set[IoFuture] = set()
        self._changed = threading.Condition()

    def new(self, label: str, slot: Buffer, link: str) -> IoFuture:
        """A future that holds the slot; waiting for it counts on `link`."""
        waited = self._drives.links[link].waited
        future = IoFuture(label, slot, patience=self._drives.patience, waited=waited)
        with self._changed:
            self._futures.add(future)
        future.add_done_callback(partial(self._forget, future))
        return future

    def give_up(self) -> None:
        """End every future that is left, with IoTimeout; its slot stays held."""
        with self._changed:
            hanging = list(self._futures)
        for future in hanging:
            future.give_up(IoTimeout(f"{future.label}: still inside the drive at close"))

    def ended(self, timeout_seconds: float) -> bool:
        """Wait until none is left; False when one still is after so long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._futures, timeout_seconds)

    def _forget(self, future: IoFuture) -> None:
        with self._changed:
            self._futures.discard(future)
            self._changed.notify_all()
