"""`jobs/{id}/events.jsonl`: what a job's processes say, one numbered line of JSON each.

One process at a time appends (first prepare, then the worker); the API reads. A line counts once
its newline is there. A line that is not whole, or not ours, ends the readable log: the next writer
cuts the file there, so that a crash in the middle of a write costs that line and nothing else.
"""

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import orjson

from headrace.engine import RunEvent
from headrace.storage import sync_directory

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """A RunEvent as it lies in the log: `seq` counts from 1, `at` is seconds since 1970."""

    seq: int
    at: float
    type: str
    level: str
    message: str
    step: int | None
    data: dict[str, Any]


class EventLog:
    """The writing end. Numbers go on after the last whole line, or after `after_seq` if higher.

    A number higher than the file's own is wanted after a power cut: the reader may have kept
    events whose lines the drive has lost. `append` may be called from any thread.
    """

    def __init__(self, path: Path, *, after_seq: int = 0) -> None:
        self._lock = threading.Lock()
        last_seq, self._whole_bytes = _scan(path)
        self._seq = max(last_seq, after_seq)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._fd, self._whole_bytes)
        sync_directory(path.parent)

    def append(self, event: RunEvent) -> int:
        """Append one event and return its number; a durable one is on the drive on return.

        Numbers that JSON cannot hold (NaN, infinities) become null. OSError when the disk is full.
        """
        with self._lock:
            line = _encode(self._seq + 1, event)
            try:
                _write_all(self._fd, line)
            except OSError:
                os.ftruncate(self._fd, self._whole_bytes)  # half a line would hide all later ones
                raise
            self._whole_bytes += len(line)
            self._seq += 1
            if event.durable:
                os.fdatasync(self._fd)
            return self._seq

    def close(self) -> None:
        """Sync what was appended and close the file."""
        os.fdatasync(self._fd)
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EventReader:
    """The reading end: remembers how far it has read, and never reads half a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.offset = 0  # bytes of whole lines read so far

    def read(self) -> list[LoggedEvent]:
        """The whole lines appended since the last call, a bounded number of them; [] for none."""
        try:
            with self._path.open("rb") as file:
                file.seek(self.offset)
                chunk = _read_lines(file)
        except FileNotFoundError:
            return []
        events = []
        for line in chunk.splitlines(keepends=True):
            event = _decode(line)
            if event is None:
                break
            events.append(event)
            self.offset += len(line)
        return events


def _encode(seq: int, event: RunEvent) -> bytes:
    values = {
        "seq": seq,
        "at": time.time(),
        "type": event.type,
        "level": event.level,
        "message": event.message,
        "step": event.step,
        "data": event.data,
    }
    return orjson.dumps(values, option=orjson.OPT_APPEND_NEWLINE)


def _decode(line: bytes) -> LoggedEvent | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return LoggedEvent(**orjson.loads(line))
    except (orjson.JSONDecodeError, TypeError):
        return None


def _scan(path: Path) -> tuple[int, int]:
    """The number of the last readable line (0 for none) and the bytes up to its end."""
    reader = EventReader(path)
    last_seq = 0
    while events := reader.read():
        last_seq = events[-1].seq
    return last_seq, reader.offset


def _read_lines(file: IO[bytes]) -> bytes:
    """About a chunk; longer, up to its newline, when a single line is longer than a chunk."""
    chunk = file.read(CHUNK_BYTES)
    while b"\n" not in chunk and (more := file.read(CHUNK_BYTES)):
        chunk += more
    return chunk


def _write_all(fd: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(fd, rest) :]
