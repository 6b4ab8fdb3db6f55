"""The status of the box as it changes: looked at once a second for all who watch, and not else."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from .contract import Daemon
from .status import daemon_status

SECONDS = 1.0
ALWAYS_NEW = ("uptime_seconds",)  # says nothing by itself


class StatusFeed:
    """Any number of readers on one event loop. One that is slow sees fewer states, none twice."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._lock = asyncio.Lock()
        self._looked_at = float("-inf")
        self._status: dict[str, Any] = {}

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """The status now, then every other one, without end."""
        told: dict[str, Any] | None = None
        while True:
            status = await self._look()
            news = {name: value for name, value in status.items() if name not in ALWAYS_NEW}
            if news != told:
                told = news
                yield status
            await asyncio.sleep(SECONDS)

    async def _look(self) -> dict[str, Any]:
        """The status, read anew when the last look is over half a round old."""
        async with self._lock:
            if time.monotonic() - self._looked_at > SECONDS / 2:
                self._status = await asyncio.to_thread(daemon_status, self._daemon)
                self._looked_at = time.monotonic()
            return self._status
