"""What crosses between the API process and its worker: one JSON object a packet. Pure.

Truth travels in `jobs/{id}/events.jsonl`, which the worker appends and the API tails; the socket
carries commands and newest-wins telemetry only, so that either side may die at any moment.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from headrace.engine import StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """API -> worker: train this job. `spec_path` is a TrainConfig as JSON, `job_dir` its folder.

    Events are numbered from `after_seq` + 1 at least: the API holds the ones up to it. The
    training state has the name `state_name`; `limits` and `integrations` are those of the create
    body.
    """

    op: ClassVar[str] = "run"
    job_id: str
    spec_path: str
    job_dir: str
    state_name: str
    after_seq: int = 0
    limits: dict[str, Any] | None = None
    integrations: list[dict[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """API -> worker: end the running job at the next step boundary, committed.

    `shutdown` ends the worker too and needs no `job_id`.
    """

    op: ClassVar[str] = "stop"
    reason: StopReason
    job_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Worker -> API: alive, the engine is imported, ready for a job.

    `rss_bytes` is its memory at this moment: budgets are counted above it.
    """

    op: ClassVar[str] = "hello"
    pid: int
    rss_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Worker -> API: a thread of the worker turns.

    `progress` grows as long as the job moves: events, polls, bytes of I/O, CPU time on a CPU run.
    """

    op: ClassVar[str] = "heartbeat"
    progress: int
    job_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Worker -> API: the newest numbers of the running job; older ones may be dropped."""

    op: ClassVar[str] = "telemetry"
    job_id: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Worker -> API: the job left the worker. A nudge: the truth is in its events.

    `leaving`: the process ends now, and takes no other job.
    """

    op: ClassVar[str] = "finished"
    job_id: str
    leaving: bool = False


Message = Run | Stop | Hello | Heartbeat | Telemetry | Finished
_KINDS: dict[str, type[Message]] = {
    kind.op: kind for kind in (Run, Stop, Hello, Heartbeat, Telemetry, Finished)
}


def encode(message: Message) -> bytes:
    """One line of JSON, newline included."""
    return json.dumps({"op": message.op, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Read a line that `encode` wrote; ValueError when it is not one."""
    try:
        values = json.loads(line)
        kind = _KINDS[values.pop("op")]
        return kind(**values)
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"not a message of the worker protocol: {line[:200]!r} ({e})") from e
