"""Bytes a second from counters that grow: what crosses each link, and each volume, now. Pure."""

from collections.abc import Mapping
from typing import Any

from headrace.engine import Traffic


class LiveRates:
    """Remembers the last look. For one thread."""

    def __init__(self) -> None:
        self._last: tuple[Traffic, float] | None = None

    def add(self, traffic: Traffic, now: float) -> dict[str, Any]:
        """The rates since the last look, at `now` seconds on any clock; nothing at the first one.

        `rates` has bytes a second by link, `volumes` the two of each path.
        """
        last, self._last = self._last, (traffic, now)
        if last is None or now <= last[1]:
            return {}
        before, seconds = last[0], now - last[1]

        def rates(new: Mapping[str, int], old: Mapping[str, int]) -> dict[str, float]:
            return {
                name: round((value - old.get(name, 0)) / seconds) for name, value in new.items()
            }

        volumes = {}
        for path, links in traffic.volumes.items():
            found = rates(links, before.volumes.get(path, {}))
            volumes[path] = {
                "read_bytes_per_second": found.get("nvme_read", 0),
                "write_bytes_per_second": found.get("nvme_write", 0),
            }
        return {"rates": rates(traffic.links, before.links), "volumes": volumes}
