"""A quick look at a training file: how many rows, how long, and whether they have a usable form."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.engine import DataProblem, Objective, RowFile, check_rows

from .errors import ApiError
from .survey_process import look_apart

SECONDS = 1.0
BYTES_PER_TOKEN = 4  # of common text; the plan of a job is made again with its real lengths
MAX_SHOWN = 5
LOOK_EVERY = 1024  # lines, blank ones too: how often the clock is looked at
LONG_BYTES = 1 << 20  # behind a longer line it is looked at too


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Rows of a file, bytes of its longest one and of one in the mean; estimated when the file is
    large."""

    num_rows: int
    longest_bytes: int
    mean_bytes: float
    is_estimate: bool

    @property
    def longest_tokens(self) -> int:
        """A guess at the tokens of the longest row, all its answers, rather low than high."""
        return max(1, self.longest_bytes // BYTES_PER_TOKEN)

    @property
    def mean_tokens(self) -> float:
        """A guess at the tokens of a row in the mean, all its answers."""
        return max(1.0, self.mean_bytes / BYTES_PER_TOKEN)


def survey_file(
    path: Path,
    *,
    param: str,
    name: str,
    kind: Objective = "supervised",
    columns: Mapping[str, str] | None = None,
) -> Survey:
    """Look at the file for a second or two; for some five times as long at one of which no row
    comes. ApiError with line numbers for rows of no use to a method of that kind.

    At a Parquet file a process of its own looks, with a limit on its memory.
    """
    try:
        if RowFile.is_table(path):
            problems, counted = look_apart(path, kind, columns or {})
            found = Survey(**counted)
        else:
            problems, found = look_here(path, kind, columns or {})
    except DataProblem as e:
        said = str(e).replace(path.name, name)
        raise ApiError(400, f"{said}.", param=param, code="invalid_training_data") from e
    if problems:
        shown = "; ".join(_by_reason(problems[:MAX_SHOWN]))
        more = f" (the first {MAX_SHOWN} shown)" if len(problems) > MAX_SHOWN else ""
        raise ApiError(
            400,
            f"{param} {name}: {shown}{more}.",
            param=param,
            code="invalid_training_data",
            hint="Correct or remove these rows; none is left out in silence.",
        )
    if found.num_rows == 0:
        message = f"{param} {name} has no rows; wanted one JSON object a line."
        if found.is_estimate:
            message = (
                f"{param} {name} was read for {SECONDS:g} s and more and no row came; wanted one "
                "JSON object a line, and no more between them than a line end."
            )
        raise ApiError(400, message, param=param, code="empty_training_file")
    return found


def _by_reason(problems: Sequence[str]) -> list[str]:
    """`line N: REASON`, with one reason said once for all the lines that have it."""
    places: dict[str, list[str]] = {}
    for problem in problems:
        place, _, reason = problem.partition(": ")
        places.setdefault(reason, []).append(place)
    return [f"{', '.join(where)}: {reason}" for reason, where in places.items()]


def look_here(
    path: Path, kind: Objective, columns: Mapping[str, str]
) -> tuple[Sequence[str], Survey]:
    """What is wrong with the rows, one more than are shown at most, and how many and long they are.

    DataProblem when the file cannot be read.
    """
    report = check_rows(path, limit_seconds=SECONDS, objective=kind, columns=columns or None)
    problems = [str(problem) for problem in report.problems[: MAX_SHOWN + 1]]
    return problems, count_rows(path, limit_seconds=SECONDS)


def count_rows(path: Path, *, limit_seconds: float) -> Survey:
    """Count the rows that are not blank; after that time, estimate from what was seen.

    DataProblem when the file cannot be read.
    """
    until = time.monotonic() + limit_seconds
    rows = longest = total = 0
    with RowFile(path, until=until) as file:
        for number, text in enumerate(file, 1):
            if text.data.strip():
                rows += 1
                longest = max(longest, len(text.data))
                total += len(text.data)
            is_time = number % LOOK_EVERY == 0 or len(text.data) > LONG_BYTES
            if is_time and time.monotonic() > until:
                is_estimate = True
                break
        else:
            is_estimate = file.ended_early
        guess = round(rows / max(file.share_taken, 1e-9)) if is_estimate else rows
    return Survey(
        num_rows=guess,
        longest_bytes=longest,
        mean_bytes=total / max(1, rows),
        is_estimate=is_estimate,
    )
