"""Look at training rows before a job does."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from .data_reports import Wanted, make_report
from .options import Columns, Json, parse_columns
from .output import CliError, Exit, print_json
from .result_cache import default_folder, remembered

TrainOn = Literal["assistant", "last_assistant", "each_assistant", "all"]
Overlong = Literal["error", "drop", "truncate_left", "truncate_right"]


def check(
    file: Annotated[Path, typer.Argument(help="JSONL or a JSON array (gzip, zstd), Parquet.")],
    valid: Annotated[
        Path | None, typer.Option(help="Validation rows, checked too: are any in both?")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A model's directory: count tokens and labels with it.")
    ] = None,
    max_seq_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a row at most; what the model can do.")
    ] = None,
    overlong: Annotated[
        Overlong | None, typer.Option(help="What becomes of longer rows; error.")
    ] = None,
    train_on: Annotated[
        TrainOn | None, typer.Option(help="What of a row is trained; assistant.")
    ] = None,
    method: Annotated[
        Literal["supervised", "dpo"] | None,
        typer.Option(help="What the rows are for; without it the first one tells."),
    ] = None,
    column: Columns = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Look again, though the same was looked at before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every row; with --model also its tokens and what would be trained. 1 if any is bad.

    What is left open is as in a job of these rows and this model.

    Ctrl-C ends the reading and tells what was seen. The same files, options and model are looked at
    once: the result is kept in the user's cache.
    """
    for path in (file, valid):
        if path is not None and not path.is_file():
            raise CliError(f"{path} is not a file")
    rules = {"max_seq_len": max_seq_len, "overlong": overlong, "train_on": train_on}
    if model is None and any(rules.values()):
        named = " and ".join(f"--{name.replace('_', '-')}" for name in rules if rules[name])
        raise CliError(f"{named}: tokens are counted by a model; give --model too")
    wanted = Wanted(
        file=file,
        valid=valid,
        model=model,
        method=method,
        columns=parse_columns(column),
        rules=rules,
    )
    report = remembered(default_folder(), wanted.key(), lambda: make_report(wanted), fresh=fresh)
    if as_json:
        print_json(report)
    else:
        from .data_view import show

        show(report)
    if not report.get("complete", True):
        raise typer.Exit(Exit.INTERRUPTED)
    bad = report["problems"] or report.get("validation", {}).get("problems")
    raise typer.Exit(Exit.FAILED if bad else Exit.OK)
