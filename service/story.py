"""A job's live story in the form of server-sent events, each event encoded once for all viewers."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import orjson

from .feed import Item
from .jobs import EventRecord
from .shapes import event_object

REMEMBERED = 1024  # encoded events; more than any viewer that keeps up is behind


def encode(name: str, data: dict[str, Any], seq: int | None = None) -> bytes:
    """One server-sent event; `seq` is the id that a viewer comes back with."""
    number = b"" if seq is None else b"id: %d\r\n" % seq
    return b"%sevent: %s\r\ndata: %s\r\n\r\n" % (number, name.encode(), orjson.dumps(data))


class Encoder:
    """Turns what a viewer is to see into bytes. For one event loop."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._telemetry: tuple[dict[str, Any], bytes] | None = None  # the last, and in that form

    def __call__(self, item: Item) -> bytes:
        """An event of the job with its number, or telemetry (`tier`) without one."""
        if not isinstance(item, EventRecord):
            if self._telemetry is None or self._telemetry[0] is not item:
                self._telemetry = (item, encode("tier", {"data": item}))
            return self._telemetry[1]
        found = self._known.get(item.id)
        if found is None:
            found = self._known[item.id] = encode(name_of(item), event_object(item), item.seq)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return found


class Thinner:
    """Lets step reports through at a bounded rate, the newest of those held back first of all.

    Whatever else happens passes at once, after what it follows. `per_second` of None thins nothing.
    """

    def __init__(
        self, per_second: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = 0.0 if per_second is None else 1 / per_second
        self._clock = clock
        self._last = float("-inf")
        self._held: EventRecord | None = None

    def take(self, item: Item) -> list[Item]:
        """What to tell now that `item` has come."""
        is_step = isinstance(item, EventRecord) and item.type == "metrics"
        due = self._clock() - self._last >= self._seconds
        if is_step and not due:
            assert isinstance(item, EventRecord)
            self._held = item
            return []
        told: list[Item] = [item]
        if self._held is not None and not is_step and (due or isinstance(item, EventRecord)):
            told = [self._held, item]
        if is_step or len(told) > 1:
            self._held, self._last = None, self._clock()
        return told


def name_of(event: EventRecord) -> str:
    """The stream's word for an event: a plain message is a `log` or a `warning`."""
    if event.type != "message":
        return event.type
    return "log" if event.level == "info" else "warning"
