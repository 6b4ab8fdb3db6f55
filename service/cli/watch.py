"""The live view of a job: a bar with loss, tokens/s, time left and the bottleneck in a sentence."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichBar
from rich.text import Text

from ..client import Client, ServerEvent
from .output import Exit, console
from .progress import Progress


class Bar:
    """A bar that stays at the bottom of a terminal while lines scroll above it.

    Where standard output is no terminal, one plain line a step is printed instead.
    """

    def __init__(self, progress: Progress, out: Console) -> None:
        self._progress = progress
        self._out = out
        self._columns = RichBar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=out
        )
        self._task = self._columns.add_task(progress.job_id, total=None)
        self._sentence = Text("", style="dim")
        self._live = Live(Group(self._columns, self._sentence), console=out, refresh_per_second=8)
        self._shown_step = 0

    def __enter__(self) -> Self:
        if self._out.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, line: str | None) -> None:
        """Redraw from the progress; print `line` above the bar when there is one."""
        if line:
            self._out.print(line, markup=False)
        progress = self._progress
        self._columns.update(
            self._task,
            completed=progress.step,
            total=progress.total_steps or None,
            description=progress.describe(),
        )
        self._sentence.plain = progress.bottleneck()
        if not self._out.is_terminal and progress.step > self._shown_step:
            self._out.print(f"step {progress.step}/{progress.total_steps}  {progress.describe()}")
        self._shown_step = progress.step


def watch_job(
    client: Client,
    job_id: str,
    *,
    out: Console | None = None,
    on_event: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Show a job until it has ended or is paused; what is known of it then.

    `on_event` is called after every event. Raises DaemonError as the client does.
    """
    progress = Progress(job_id=job_id)
    progress.apply_job(client.job(job_id))
    with Bar(progress, out or console()) as bar:
        for event in _until_end(progress, client.follow(job_id)):
            bar.show(progress.apply(event))
            on_event(progress)
    progress.apply_job(client.job(job_id))
    return progress


def watch_json(client: Client, job_id: str) -> Progress:
    """Print every event as one JSON line until the job has ended or is paused."""
    progress = Progress(job_id=job_id)
    progress.apply_job(client.job(job_id))
    for event in _until_end(progress, client.follow(job_id)):
        progress.apply(event)
        print(json.dumps(asdict(event), default=str), flush=True)
    progress.apply_job(client.job(job_id))
    return progress


def exit_code(progress: Progress) -> Exit:
    """0 for a job that succeeded, FAILED for one that failed, UNFINISHED for the rest."""
    return {"succeeded": Exit.OK, "failed": Exit.FAILED}.get(progress.status, Exit.UNFINISHED)


def _until_end(progress: Progress, events: Iterable[ServerEvent]) -> Iterable[ServerEvent]:
    """The events, up to the one that pauses the job; an end of the job ends them by itself."""
    for event in events:
        yield event
        if progress.status == "paused":
            return
