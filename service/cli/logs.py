"""`headrace logs`: what happened to a job, and what happens now."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime
from itertools import chain
from typing import Annotated, Any

import typer

from ..client import Client
from .options import DEFAULT_URL, JobId, Json, TokenFile, Url, connect
from .output import Exit, console, print_json

PAGE = 100
STEPS = ("metrics", "commit")  # one of each a step


def logs(
    job_id: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens, until the job ends.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The newest so many.")] = 50,
    steps: Annotated[bool, typer.Option(help="Show the reports of every step too.")] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: Json = False,
) -> None:
    """Print what happened to a job, oldest first. Ctrl-C ends the following, never the job.

    What is told again and again, such as the progress of an import, is one line of the text.
    """
    with connect(url, token_file) as client:
        told = newest_events(client, job_id, lines, steps=steps)
        last = max((event["seq"] for event in told), default=0)
        later = later_events(client, job_id, last, steps=steps) if follow else ()
        said = None
        try:
            for event in chain(told, later):
                if as_json:
                    print_json(event)
                elif (event["level"], event["message"]) != said:
                    _print(event)
                said = event["level"], event["message"]
        except KeyboardInterrupt:
            raise typer.Exit(Exit.INTERRUPTED) from None


def newest_events(client: Client, job_id: str, count: int, *, steps: bool) -> list[dict[str, Any]]:
    """The newest `count` events that are to be shown, oldest first."""
    found: list[dict[str, Any]] = []
    for event in client.events(job_id, page=PAGE):
        if len(found) >= count:
            break
        if _is_shown(event, steps):
            found.append(event)
    return found[::-1]


def later_events(
    client: Client, job_id: str, after: int, *, steps: bool
) -> Iterator[dict[str, Any]]:
    """Events after that number, as they come, until the job has ended."""
    with closing(client.follow(job_id, after=str(after) if after else "")) as events:
        yield from _shown((event.data for event in events if _has_number(event.data)), steps)


def _shown(events: Iterable[dict[str, Any]], steps: bool) -> Iterator[dict[str, Any]]:
    return (event for event in events if _is_shown(event, steps))


def _has_number(data: Any) -> bool:
    return isinstance(data, dict) and data.get("object") == "fine_tuning.job.event"


def _is_shown(event: dict[str, Any], steps: bool) -> bool:
    return steps or event["kind"] not in STEPS


def _print(event: dict[str, Any]) -> None:
    clock = datetime.fromtimestamp(event["created_at"]).strftime("%Y-%m-%d %H:%M:%S")
    level = "" if event["level"] == "info" else f"{event['level']}: "
    console().print(f"{clock}  {level}{event['message']}", markup=False)
