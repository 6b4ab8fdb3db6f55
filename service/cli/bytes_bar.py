"""A bar of bytes for long readings, on standard error, and only where people look at it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def bytes_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Draw while the body runs; it calls what it gets with bytes done and bytes in all."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield progress


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Ctrl-C asks the body to come to an end, which it can see; a second one ends it at once."""
    asked = False

    def take_note(_: int, __: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, take_note)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
