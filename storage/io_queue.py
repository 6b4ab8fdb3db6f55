"""The threads that serve one volume: reads before writes before scrubbing, in order within each."""

import heapq
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from .errors import StoreError
from .stats import LinkMeter
from .throttle import Throttle, sleep_until

Kind = Literal["read", "write", "scrub", "sync"]
_PRIORITY: dict[Kind, int] = {"sync": 0, "read": 0, "write": 1, "scrub": 2}
_METER: dict[Kind, str] = {"read": "nvme_read", "scrub": "nvme_read", "write": "nvme_write"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call to a volume. `work` moves the bytes; `ended` hears of its end, exactly once."""

    kind: Kind
    work: Callable[[], None]
    ended: Callable[[BaseException | None], None]
    num_bytes: int = 0
    payload_bytes: int = 0


class IoQueue:
    """A few threads that take calls in order of priority. Counts, times and throttles them."""

    def __init__(
        self,
        name: str,
        *,
        num_threads: int,
        meters: Mapping[str, LinkMeter],
        throttle: Throttle | None = None,
    ) -> None:
        self.name = name
        self.meters = meters
        self._throttle = throttle
        self._waiting: list[tuple[int, int, Call]] = []
        self._num_submitted = 0
        self._running: dict[int, float] = {}  # thread -> when its call began
        self._closed = False
        self._num_failed = 0
        self._last_error = ""
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._serve, name=f"io-{name}-{i}", daemon=True)
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Call) -> None:
        """Queue a call; on a closed queue it ends at once, with a StoreError."""
        with self._changed:
            if not self._closed:
                self._num_submitted += 1
                entry = (_PRIORITY[call.kind], self._num_submitted, call)
                heapq.heappush(self._waiting, entry)
                self._changed.notify()
                return
        call.ended(self._closed_error())

    def run(self, kind: Kind, work: Callable[[], None], num_bytes: int = 0) -> Future[None]:
        """Queue a call of no payload; the future ends with it."""
        outcome: Future[None] = Future()

        def ended(error: BaseException | None) -> None:
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

        self.submit(Call(kind=kind, work=work, ended=ended, num_bytes=num_bytes))
        return outcome

    def hung_seconds(self) -> float:
        """How long the oldest call has been inside the drive; 0 when none is."""
        with self._changed:
            return max((time.monotonic() - t for t in self._running.values()), default=0.0)

    def failures(self) -> tuple[int, str]:
        """How many calls have failed, and what the last of them said."""
        with self._changed:
            return self._num_failed, self._last_error

    def close(self, timeout_seconds: float) -> bool:
        """End the queue: waiting calls end with a StoreError, running ones may finish.

        False when a call is still inside the drive after `timeout_seconds`.
        """
        with self._changed:
            self._closed = True
            dropped, self._waiting = self._waiting, []
            self._changed.notify_all()
        for _, _, call in dropped:
            call.ended(self._closed_error())
        deadline = time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while (call := self._next()) is not None:
            error = self._run(call)
            call.ended(error)

    def _next(self) -> Call | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return heapq.heappop(self._waiting)[2] if self._waiting else None

    def _run(self, call: Call) -> BaseException | None:
        meter = self.meters.get(_METER.get(call.kind, ""))
        if meter is not None:
            meter.started()
        moved = False
        try:
            self._timed(call)
            moved = True
            return None
        except BaseException as error:  # whatever it is, the one who waits must hear of it
            with self._changed:
                self._num_failed += 1
                self._last_error = str(error)
            return error
        finally:
            if meter is not None:
                meter.finished(
                    payload_bytes=call.payload_bytes if moved else 0,
                    padding_bytes=call.num_bytes - call.payload_bytes if moved else 0,
                )

    def _timed(self, call: Call) -> None:
        thread = threading.get_ident()
        with self._changed:
            self._running[thread] = time.monotonic()
        try:
            through_at = self._throttle.book(call.num_bytes) if self._throttle else 0.0
            call.work()
        finally:
            with self._changed:
                del self._running[thread]
        sleep_until(through_at)

    def _closed_error(self) -> StoreError:
        return StoreError(f"the store on volume {self.name} was closed before this was done")
