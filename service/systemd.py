"""Telling systemd how the daemon is (`Type=notify`): ready, alive, stopping, and in words.

The protocol is lines of NAME=VALUE in a datagram to the socket that `NOTIFY_SOCKET` names. Started
by anything else, nothing is sent.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import Self

BEAT_SECONDS = 5.0
PATIENCE_SECONDS = 1.0  # for a word that is said once; a beat comes again, and waits for nobody
EXTENSION_SECONDS = 60  # asked for again with every beat while the step in hand is finished

log = logging.getLogger(__name__)


class Notifier:
    """Sends to systemd; a stand-in that sends nothing when there is no systemd to tell."""

    def __init__(self, address: str | None, *, watchdog_seconds: float | None = None) -> None:
        self._address = address
        self._watchdog_seconds = watchdog_seconds

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """As systemd has left it in the environment of this process."""
        microseconds = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID") in (None, str(os.getpid()))
        seconds = int(microseconds) / 1e6 if microseconds.isdecimal() and ours else None
        return cls(environment.get("NOTIFY_SOCKET"), watchdog_seconds=seconds)

    @property
    def beat_seconds(self) -> float:
        """How often to `beat`: twice within the time that the watchdog allows."""
        return min(BEAT_SECONDS, (self._watchdog_seconds or 2 * BEAT_SECONDS) / 2)

    def tell(self, **lines: str | int) -> None:
        """Send one datagram. Never raises: a lost word to systemd is no reason to stop training."""
        self._send(lines, PATIENCE_SECONDS)

    def _send(self, lines: Mapping[str, str | int], patience_seconds: float) -> None:
        """Send within that time. A receiver that does not read takes some ten datagrams, and none
        after that."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        text = "\n".join(f"{name}={value}" for name, value in lines.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(patience_seconds)
                sock.connect(address)
                sock.send(text.encode())
        except OSError as error:
            log.warning("systemd cannot be told %s: %s", ", ".join(lines), error)

    async def beat(self, describe: Callable[[], str], is_stopping: Callable[[], bool]) -> None:
        """Say again and again, until cancelled, that the event loop turns and what goes on.

        While stopping, more time is asked for: the step in hand is finished and committed first.
        """
        while True:
            lines: dict[str, str | int] = {"WATCHDOG": 1, "STATUS": describe()}
            if is_stopping():
                lines["EXTEND_TIMEOUT_USEC"] = EXTENSION_SECONDS * 1_000_000
            self._send(lines, 0)
            await asyncio.sleep(self.beat_seconds)
