"""A data report as people read it: counts, lengths as bars, rows with what is trained marked."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from .output import console

BAR = 40
DRAWN = ("histogram", "preview", "validation", "cached", "complete", "unreadable")
FOR_PROGRAMS = ("numerics",)  # what a data set is known again by


def show(report: Mapping[str, Any]) -> None:
    """Print it; of the rows shown, what is trained is green."""
    out = console()
    if report.get("cached"):
        out.print("The same was looked at before; this is what was found (--fresh looks again).")
    if not report.get("complete", True):
        out.print("Interrupted: this is of the rows up to there.")
    _show_file(report, out)
    if "validation" in report:
        out.print("validation rows:")
        _show_file(report["validation"], out)


def _show_file(report: Mapping[str, Any], out: Console) -> None:
    for name, value in report.items():
        if name not in (*DRAWN, *FOR_PROGRAMS) and (name == "problems" or _says_something(value)):
            out.print(f"{name}: {_shown(value)}", markup=False)
    if report.get("histogram"):
        out.print("rows by tokens:")
        for line in bars(report["histogram"]):
            out.print(line, markup=False)
    if report.get("preview"):
        out.print("the first rows, what is trained in green:" if out.is_terminal else "first rows:")
    for row in report.get("preview", ()):
        out.print(Text.assemble(*((s["text"], "green" if s["trained"] else "dim") for s in row)))


def bars(histogram: Mapping[str, int]) -> list[str]:
    """A line for each class of lengths: its upper end, a bar, and the rows in it."""
    most = max(histogram.values())
    wide = max(map(len, histogram))
    return [
        f"  up to {top:>{wide}} {'#' * max(1, round(BAR * rows / most)):<{BAR}} {rows}"
        for top, rows in histogram.items()
    ]


def _says_something(value: Any) -> bool:
    """False for what a report leaves open or has none of; a count of 0 is said."""
    return isinstance(value, int | float) or bool(value)


def _shown(value: Any) -> str:
    """A list one item a line, a mapping on one line, everything else as it is."""
    if isinstance(value, list | tuple) and value:
        return "".join(f"\n  {_shown(item)}" for item in value)
    if isinstance(value, dict) and value:
        told = ((name, item) for name, item in value.items() if _says_something(item))
        return ", ".join(f"{name}: {_shown(item)}" for name, item in told)
    return str(value or 0) if isinstance(value, int | float) else str(value or "none")
