"""What the command line prints, and the exit codes it ends with."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported where something is printed for people
    from rich.console import Console

UNBROKEN_WIDTH = 10_000


class Exit(IntEnum):
    """The exit codes of every command."""

    OK = 0
    FAILED = 1  # the job failed, or a check did not pass
    USAGE = 2  # the command line, or a file that it names, is wrong
    UNREACHABLE = 3  # no daemon answers
    REFUSED = 4  # the daemon or the engine refused, with the reason
    UNFINISHED = 5  # the job was cancelled or paused
    INTERRUPTED = 130  # Ctrl-C


class CliError(Exception):
    """Ends the command with a message for people and an exit code."""

    def __init__(self, message: str, code: Exit = Exit.USAGE) -> None:
        self.code = code
        super().__init__(message)


def json_by_itself() -> bool:
    """Whether to print JSON when nobody has said: to a pipe or a file, not to a terminal."""
    chosen = os.environ.get("HEADRACE_OUTPUT")
    return chosen == "json" if chosen in ("json", "text") else not sys.stdout.isatty()


def console() -> "Console":
    """Where people read: standard output; what is no terminal gets plain, unbroken lines."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else UNBROKEN_WIDTH
    return Console(highlight=False, width=width)


def print_json(value: Any) -> None:
    """One JSON document on one line, for programs."""
    print(json.dumps(value, default=str), flush=True)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Rows under their column names, if any, or the sentence `empty` when there are no rows."""
    from rich.table import Table

    out = console()
    if not rows:
        out.print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=bool(columns))
    for i, column in enumerate(columns or [""] * len(rows[0])):
        table.add_column(column, overflow="fold", no_wrap=i == 0)  # ids are there to be copied
    for row in rows:
        table.add_row(*row)
    with out.capture() as drawn:
        out.print(table)
    for line in drawn.get().splitlines():
        print(line.rstrip(), flush=True)  # one long value must not widen every other line


def note(text: str) -> None:
    """A remark for people, on standard error, where it is in no program's way."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """A function that says what is being done, for as long as it is done.

    On standard error, where that is a terminal; elsewhere nothing is said.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False).status("") as shown:
        yield lambda text: shown.update(f"{_escaped(text)} …")


def report_error(message: str, *, code: Exit, as_json: bool, details: Any = None) -> None:
    """The reason a command ends early, on standard error; one JSON document with `--json`."""
    if as_json:
        error = {"message": message, "exit_code": int(code), **(details or {})}
        print(json.dumps({"error": error}, default=str), file=sys.stderr)
    else:
        from rich.console import Console

        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"[bold red]headrace:[/] {_escaped(message)}"
        )


def human_bytes(num_bytes: float) -> str:
    """Bytes with a decimal unit, as drives are sold: 1610000000 -> '1.61 GB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def human_count(number: float) -> str:
    """A count to three digits, as it is said: 66123.4 -> '66,100'; 2.5 -> '2.5'."""
    return f"{float(f'{number:.3g}'):,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def human_seconds(seconds: float) -> str:
    """Seconds as a clock: 75 -> '1:15', 3700 -> '1:01:40'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
