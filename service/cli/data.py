"""Look at training rows before a job does."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text

from .options import Json
from .output import CliError, Exit, console, print_json

if TYPE_CHECKING:
    from headrace.engine import FormCheck, Objective

CHECK_SECONDS = 600.0
TrainOn = Literal["assistant", "last_assistant", "all"]
Overlong = Literal["error", "drop", "truncate_left", "truncate_right"]


def check(
    file: Annotated[Path, typer.Argument(help="Rows: JSONL or one JSON array, plain or gzip.")],
    valid: Annotated[
        Path | None, typer.Option(help="Validation rows, checked too: are any in both?")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A model's directory: count tokens and labels with it.")
    ] = None,
    max_seq_len: Annotated[int, typer.Option(min=1, help="Longer rows are reported.")] = 2048,
    overlong: Annotated[Overlong, typer.Option(help="What becomes of longer rows.")] = "error",
    train_on: Annotated[TrainOn, typer.Option(help="What of a row is trained.")] = "assistant",
    method: Annotated[
        Literal["supervised", "dpo"] | None,
        typer.Option(help="What the rows are for; without it the first one tells."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check every row; with --model also its tokens and what would be trained. 1 if any is bad."""
    for path in (file, valid):
        if path is not None and not path.is_file():
            raise CliError(f"{path} is not a file")
    if model is None:
        report = check_forms(file, valid, method)
    else:
        how: dict[str, Any] = {"max_seq_len": max_seq_len, "overlong": overlong}
        how |= {"train_on": train_on, "objective": method}
        report = prepare_reports(file, valid, model, **how)
    if as_json:
        print_json(report)
    else:
        _show(report)
    bad = report["problems"] or report.get("validation", {}).get("problems")
    raise typer.Exit(Exit.FAILED if bad else Exit.OK)


def check_forms(
    file: Path, valid: Path | None, method: "Objective | None" = None
) -> dict[str, Any]:
    """The rows without a tokenizer: formats, twins, and the first things wrong with them.

    All must serve the `method`, or that which the first row serves.
    """
    from headrace.engine import DataProblem, check_rows

    try:
        training = check_rows(file, limit_seconds=CHECK_SECONDS, objective=method)
        report = _form_report(training)
        if valid is not None:
            kind = training.objective
            held_out = check_rows(valid, limit_seconds=CHECK_SECONDS, objective=kind)
            report["validation"] = _form_report(held_out)
            leaked = held_out.index.found_in(training.index)
            report["validation"] |= {"in_training": leaked.count, "warnings": leaked.examples}
    except DataProblem as error:
        return {"problems": [str(error)]}
    return report


def _form_report(found: "FormCheck") -> dict[str, Any]:
    problems = [str(problem) for problem in found.problems]
    return {
        "form": found.form,
        "method": found.objective,
        "formats": found.formats,
        "rows_seen": found.num_rows,
        "complete": found.complete,
        "duplicates": found.index.duplicates().count,
        "problems": problems if found.num_rows else ["there is no row in it"],
    }


def prepare_reports(file: Path, valid: Path | None, model: Path, **how: Any) -> dict[str, Any]:
    """The data reports that a job with this model would start from; its files are thrown away."""
    from headrace.engine import ModelError, RowIndex, load_tokenizer, prepare_model, read_model_spec

    with tempfile.TemporaryDirectory(prefix="headrace-data-") as directory:
        try:
            how["vocab_size"] = read_model_spec(model).vocab_size
            how["tokenizer"] = load_tokenizer(prepare_model(model, Path(directory, "model")))
        except ModelError as error:
            raise CliError(str(error), Exit.REFUSED) from error
        how["out_dir"] = Path(directory, "rows")
        training = RowIndex()
        report = _prepare(file, index=training, **how)
        if valid is not None:
            how["objective"] = report.get("objective", how["objective"])
            report["validation"] = _prepare(valid, training=training, **how)
        return report


def _prepare(file: Path, **how: Any) -> dict[str, Any]:
    from headrace.engine import DataProblem, prepare_dataset

    try:
        return {**prepare_dataset([file], **how).to_dict(), "problems": []}
    except DataProblem as error:
        found = error.report.to_dict() if error.report else {}
        return {**found, "problems": [str(error)]}


def _show(report: dict[str, Any]) -> None:
    """The report line by line; of the rows shown, what is trained is green."""
    out = console()
    for name, value in report.items():
        if name not in ("preview", "validation"):
            out.print(f"{name}: {_shown(value)}", markup=False)
    if report.get("preview"):
        out.print("the first rows, what is trained in green:" if out.is_terminal else "first rows:")
    for row in report.get("preview", ()):
        out.print(Text.assemble(*((s["text"], "green" if s["trained"] else "dim") for s in row)))
    if "validation" in report:
        out.print("validation rows:")
        _show(report["validation"])


def _shown(value: Any) -> str:
    """A list one item a line, a mapping on one line, everything else as it is."""
    if isinstance(value, list | tuple) and value:
        return "".join(f"\n  {_shown(item)}" for item in value)
    if isinstance(value, dict) and value:
        return ", ".join(f"{name}: {_shown(item)}" for name, item in value.items())
    return str(value or 0) if isinstance(value, int) else str(value or "none")
