"""What systemd is told, and that the daemon waits for nobody who does not listen."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.service import systemd
from headrace.service.systemd import Notifier


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(60)
        yield sock


def full(notifier: Notifier) -> None:
    """Say so much that the receiver, who does not read, can take no more."""
    for _ in range(1000):
        notifier._send({"STATUS": "x"}, 0)


def test_a_receiver_that_does_not_read_holds_nothing_up(
    receiver: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(systemd, "PATIENCE_SECONDS", 0.05)
    notifier = Notifier(receiver.getsockname(), watchdog_seconds=0.02)
    full(notifier)
    notifier.tell(STOPPING=1)
    assert "systemd cannot be told STOPPING" in caplog.text

    async def beats() -> None:
        beating = asyncio.create_task(notifier.beat(lambda: "beats", lambda: False))
        await asyncio.sleep(0.05)  # the loop turns, though nothing can be sent
        heard = receiver.recv(4096)
        while heard != b"WATCHDOG=1\nSTATUS=beats":
            heard = await asyncio.to_thread(receiver.recv, 4096)
        beating.cancel()

    asyncio.run(asyncio.wait_for(beats(), 60))


def test_without_systemd_nothing_is_sent() -> None:
    notifier = Notifier.of({})
    notifier.tell(READY=1)
    assert notifier.beat_seconds == systemd.BEAT_SECONDS
