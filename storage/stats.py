"""Bytes, calls and seconds per tier edge, as counted; and what a store says of itself."""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .health import DriveWarning
from .memory import MemoryStatus

if TYPE_CHECKING:
    from .volume import VolumeStatus


Span = tuple[float, float]  # from, to; seconds on the monotonic clock
MAX_SPANS = 1024  # remembered; more than people can tell apart in a picture of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStats:
    """Traffic over one edge since it was opened; subtract an earlier snapshot for a step's share.

    `busy_seconds` is the time in which at least one call was under way; `wait_seconds` the time
    that callers stood waiting for results, summed over callers. `spans` are the newest busy times,
    one after the other, of an edge that is not a part of another.
    """

    payload_bytes: int = 0
    padding_bytes: int = 0
    operations: int = 0
    busy_seconds: float = 0.0
    wait_seconds: float = 0.0
    spans: tuple[Span, ...] = ()

    def __sub__(self, earlier: "LinkStats") -> "LinkStats":
        last = earlier.spans[-1][1] if earlier.spans else 0.0
        return LinkStats(
            payload_bytes=self.payload_bytes - earlier.payload_bytes,
            padding_bytes=self.padding_bytes - earlier.padding_bytes,
            operations=self.operations - earlier.operations,
            busy_seconds=self.busy_seconds - earlier.busy_seconds,
            wait_seconds=self.wait_seconds - earlier.wait_seconds,
            spans=tuple(span for span in self.spans if span[1] > last),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """`links` has the keys "nvme_read" and "nvme_write"; `per_volume` the same, volume by volume.

    Waits are counted in `links` alone: a caller waits for a record, not for a volume.
    """

    links: Mapping[str, LinkStats]
    per_volume: Mapping[str, Mapping[str, LinkStats]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStatus:
    """What a store is and which road its bytes take. `warnings` names slow and failing drives."""

    name: str
    generation: int
    step: int
    num_records: int
    total_bytes: int
    read_only: bool
    volumes: Sequence["VolumeStatus"]
    warnings: Sequence[DriveWarning] = ()
    memory: MemoryStatus | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready values."""
        return asdict(self)


class LinkMeter:
    """Counts one edge from any number of threads. A parent counts the same calls once more."""

    def __init__(self, parent: "LinkMeter | None" = None) -> None:
        self._parent = parent
        self._lock = threading.Lock()
        self._payload_bytes = self._padding_bytes = self._operations = 0
        self._busy_seconds = self._wait_seconds = 0.0
        self._under_way = 0
        self._busy_since = 0.0
        self._spans: deque[Span] = deque(maxlen=MAX_SPANS)

    def started(self) -> None:
        """A call begins."""
        with self._lock:
            if self._under_way == 0:
                self._busy_since = time.monotonic()
            self._under_way += 1
        if self._parent is not None:
            self._parent.started()

    def finished(self, *, payload_bytes: int, padding_bytes: int) -> None:
        """A call that moved so many bytes (none when it failed) is over."""
        with self._lock:
            self._payload_bytes += payload_bytes
            self._padding_bytes += padding_bytes
            self._operations += 1
            self._under_way -= 1
            if self._under_way == 0:
                now = time.monotonic()
                self._busy_seconds += now - self._busy_since
                if self._parent is None:
                    self._spans.append((self._busy_since, now))
        if self._parent is not None:
            self._parent.finished(payload_bytes=payload_bytes, padding_bytes=padding_bytes)

    def add(
        self, *, payload_bytes: int, padding_bytes: int, busy_seconds: float, began: float
    ) -> None:
        """Count a call that was timed elsewhere and began at that moment of the monotonic clock."""
        with self._lock:
            self._spans.append((began, began + busy_seconds))
            self._payload_bytes += payload_bytes
            self._padding_bytes += padding_bytes
            self._operations += 1
            self._busy_seconds += busy_seconds

    def waited(self, seconds: float) -> None:
        """A caller stood waiting for `seconds`."""
        with self._lock:
            self._wait_seconds += seconds

    def snapshot(self) -> LinkStats:
        """The counts now; a call under way counts with its time so far."""
        with self._lock:
            running = time.monotonic() - self._busy_since if self._under_way else 0.0
            return LinkStats(
                payload_bytes=self._payload_bytes,
                padding_bytes=self._padding_bytes,
                operations=self._operations,
                busy_seconds=self._busy_seconds + running,
                wait_seconds=self._wait_seconds,
                spans=tuple(self._spans),
            )
