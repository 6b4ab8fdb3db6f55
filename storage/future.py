"""The outcome of one record on its way: a future that keeps hold of its slot."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import IoTimeout, Misuse, StoreError

_LOOK_SECONDS = 0.25


class Buffer(Protocol):
    """What the store asks of a slot. Every hold is matched by one release."""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""

    @property
    def view(self) -> Any:
        """The bytes, writable: a memoryview, or a view of device memory."""

    @property
    def on_device(self) -> bool:
        """True when only GPUDirect Storage reaches the bytes."""

    def hold(self) -> None:
        """An operation begins to use the slot."""

    def release(self) -> None:
        """The operation is over."""

    def quarantine(self, why: str) -> None:
        """An operation timed out: its bytes may still arrive, at any time until it ends."""

    def check_usable(self) -> None:
        """Raise Misuse while the slot is quarantined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a single call may stay inside a drive, and how long the oldest one has."""

    timeout_seconds: float
    hung_seconds: Callable[[], float]


def wait_for(
    outcome: Future[None], label: str, patience: Patience, timeout: float | None = None
) -> None:
    """Wait for an outcome and raise its error. IoTimeout after `timeout` seconds; without one,
    when a call to a drive has hung for longer than patience allows."""
    start = time.monotonic()
    while not outcome.done():
        waited = time.monotonic() - start
        left = _LOOK_SECONDS if timeout is None else timeout - waited
        if left <= 0:
            raise IoTimeout(f"{label}: not done after {waited:.1f} s; it may still be under way")
        wait([outcome], min(left, _LOOK_SECONDS))
        hung = patience.hung_seconds()
        if timeout is None and hung > patience.timeout_seconds and not outcome.done():
            raise IoTimeout(
                f"{label}: a call to a drive has not returned for {hung:.1f} s; "
                "it may still be under way. Look at the drive and the kernel's log"
            )
    outcome.result()


class IoFuture:
    """One read or write of a record. Its slot belongs to it until it is done."""

    def __init__(
        self,
        label: str,
        slot: Buffer,
        *,
        patience: "Patience",
        waited: Callable[[float], None],
    ) -> None:
        self.label = label
        self._slot = slot
        self._patience = patience
        self._waited = waited
        self._outcome: Future[None] = Future()
        self._lock = threading.Lock()
        self._begun = False
        self._resolved = False
        slot.hold()

    def done(self) -> bool:
        """True when the bytes are through, or the operation has failed or was cancelled."""
        return self._outcome.done()

    def result(self, timeout: float | None = None) -> None:
        """Wait for the end, and raise what went wrong.

        Raises IoTimeout after `timeout` seconds; without one, when a call to a drive has hung for
        longer than the store's io_timeout_seconds. Then the slot is quarantined: the operation may
        still be under way.
        """
        if self._outcome.done():
            self._outcome.result()
            return
        start = time.monotonic()
        try:
            wait_for(self._outcome, self.label, self._patience, timeout)
        except IoTimeout as error:
            if not self._outcome.done():
                self._slot.quarantine(str(error))
            raise
        finally:
            self._waited(time.monotonic() - start)

    def cancel(self) -> bool:
        """Drop the operation if none of it has begun; True when it was dropped.

        A cancelled write counts as a failed one: the store then wants `abort`.
        """
        with self._lock:
            if self._begun or self._resolved:
                return False
            self._resolved = True
        self._outcome.set_exception(Misuse(f"{self.label} was cancelled"))
        return True

    def begin(self) -> bool:
        """Called before bytes move; False when the operation was cancelled or given up."""
        with self._lock:
            self._begun = not self._resolved
            return self._begun

    def finish(self, error: BaseException | None = None) -> None:
        """Nothing of the operation is under way any more: its slot is free again."""
        self._slot.release()
        self._resolve(error)

    def give_up(self, error: StoreError) -> None:
        """Resolve the future although its calls may still be under way; the slot stays held."""
        if self._resolve(error):
            self._slot.quarantine(str(error))

    def exception(self) -> BaseException | None:
        """What went wrong, of a future that is done."""
        return self._outcome.exception(timeout=0)

    def add_done_callback(self, call: Callable[[], None]) -> None:
        """Call once the future is done; at once when it is."""
        self._outcome.add_done_callback(lambda _: call())

    def _resolve(self, error: BaseException | None) -> bool:
        with self._lock:
            if self._resolved:
                return False
            self._resolved = True
        if error is None:
            self._outcome.set_result(None)
        else:
            self._outcome.set_exception(error)
        return True


def start_after(
    before: Sequence[IoFuture],
    future: IoFuture,
    start: Callable[[], None],
    *,
    inherit_failure: bool,
) -> None:
    """Call `start` once all of `before` are done, at once when they are.

    With `inherit_failure` the failure of one of them ends `future` in its stead. No thread waits.
    """
    lock = threading.Lock()
    left = len(before) + 1

    def one_done() -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        failures = (one.exception() for one in before if inherit_failure)
        if error := next((one for one in failures if one is not None), None):
            future.finish(error)
        else:
            start()

    for one in before:
        one.add_done_callback(one_done)
    one_done()
