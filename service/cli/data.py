"""Look at training rows before a job does."""

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from .options import Json
from .output import CliError, Exit, console, print_json

CHECK_SECONDS = 600.0


def check(
    file: Annotated[Path, typer.Argument(help="JSONL, one chat conversation a line.")],
    model: Annotated[
        Path | None, typer.Option(help="A model's directory: count tokens and labels with it.")
    ] = None,
    max_seq_len: Annotated[int, typer.Option(help="Longer rows are reported.")] = 2048,
    as_json: Json = False,
) -> None:
    """Check every row; with --model also its tokens and what would be trained. 1 if any is bad."""
    if not file.is_file():
        raise CliError(f"{file} is not a file")
    report = check_rows_of(file) if model is None else prepare_report(file, model, max_seq_len)
    if as_json:
        print_json(report)
    else:
        _show(report)
    raise typer.Exit(Exit.FAILED if report["problems"] else Exit.OK)


def check_rows_of(file: Path) -> dict[str, Any]:
    """The rows without a tokenizer: how many were seen, and the first things wrong with them."""
    from headrace.engine import check_rows

    rows, found = check_rows(file, limit_seconds=CHECK_SECONDS)
    problems = [f"line {problem.line}: {problem.message}" for problem in found]
    return {"rows_seen": rows, "problems": problems if rows else ["there is no row in it"]}


def prepare_report(file: Path, model: Path, max_seq_len: int) -> dict[str, Any]:
    """The data report that a job with this model would start from; its files are thrown away."""
    from headrace.engine import (
        DataProblem,
        ModelError,
        load_tokenizer,
        prepare_dataset,
        prepare_model,
        read_model_spec,
    )

    with tempfile.TemporaryDirectory(prefix="headrace-data-") as directory:
        try:
            vocab_size = read_model_spec(model).vocab_size
            tokenizer = load_tokenizer(prepare_model(model, Path(directory, "model")))
            report = prepare_dataset(
                [file],
                tokenizer=tokenizer,
                out_dir=Path(directory, "rows"),
                max_seq_len=max_seq_len,
                vocab_size=vocab_size,
            )
        except ModelError as error:
            raise CliError(str(error), Exit.REFUSED) from error
        except DataProblem as error:
            found = error.report.to_dict() if error.report else {}
            return {**found, "problems": [str(error)]}
    return {**report.to_dict(), "problems": []}


def _show(report: dict[str, Any]) -> None:
    """The report line by line; of the rows shown, what is trained is green."""
    out = console()
    for name, value in report.items():
        if name != "preview":
            out.print(f"{name}: {_shown(value)}", markup=False)
    for row in report.get("preview", ()):
        out.print(Text.assemble(*((s["text"], "green" if s["trained"] else "dim") for s in row)))


def _shown(value: Any) -> str:
    """A list one item a line, everything else as it is."""
    if isinstance(value, list | tuple) and value:
        return "".join(f"\n  {item}" for item in value)
    return str(value or 0) if isinstance(value, int) else str(value or "none")
