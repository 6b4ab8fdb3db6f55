"""One run of the product, in this process, and what it said."""

from collections.abc import Callable
from pathlib import Path

from headrace.engine import RunEvent, StopReason, TrainConfig, run_job


def follow(
    config: TrainConfig,
    run_dir: Path,
    told: Callable[[RunEvent], None] = lambda event: None,
    poll: Callable[[], StopReason | None] = lambda: None,
) -> list[RunEvent]:
    """The events of a run, each told as it comes too. Its store is named as its folder is."""
    events: list[RunEvent] = []

    def emit(event: RunEvent) -> None:
        events.append(event)
        told(event)

    run_job(config, run_dir=run_dir, name=run_dir.name, emit=emit, poll=poll)
    return events
