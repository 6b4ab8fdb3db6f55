"""What is sent to an engine process arrives, also when it reads slowly."""

import asyncio
import signal
import sys
from pathlib import Path

from headrace.service.child import Child, describe_end
from headrace.service.engine_process import EXIT_RENEW
from headrace.service.ipc import Stop


def test_no_message_is_lost_while_the_process_does_not_read(tmp_path: Path) -> None:
    """More than the socket holds: the rest follows when there is room, in order."""
    count = 2000
    program = (
        "import socket, sys, time, json\n"
        "end = socket.socket(fileno=int(sys.argv[2]))\n"
        "time.sleep(0.3)\n"
        f"seen = [json.loads(end.recv(1 << 18))['job_id'] for _ in range({count})]\n"
        f"sys.exit(0 if seen == [str(i) for i in range({count})] else 1)\n"
    )

    async def send_all() -> int:
        output = tmp_path / "log"
        child = Child(
            [sys.executable, "-c", program], output=output, on_message=lambda message: None
        )
        for i in range(count):
            child.send(Stop(reason="pause", job_id=str(i)))
        await child.gone(within_seconds=20)
        return (await child.reap()).status

    assert asyncio.run(send_all()) == 0


def test_causes_of_death_are_told_apart() -> None:
    assert "out of memory" in describe_end(-signal.SIGKILL, 1)
    assert describe_end(-signal.SIGKILL, 0) == "signal SIGKILL"
    assert describe_end(-signal.SIGSEGV, 1) == "signal SIGSEGV"
    assert describe_end(EXIT_RENEW, 0) == f"exit status {EXIT_RENEW}"
