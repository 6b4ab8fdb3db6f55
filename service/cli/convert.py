"""`headrace convert`: a model as one GGUF file."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from .exports import describe_check
from .options import Json
from .output import CliError, Exit, console, human_bytes, print_json


def convert(
    model: Annotated[
        Path,
        typer.Argument(
            help="A Hugging Face directory, such as `headrace export` makes, or a GGUF file."
        ),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            help="The file to make, NAME.gguf, or a directory for it and the report of what was "
            "read back; it must not exist yet."
        ),
    ],
    dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16", "q8_0"],
        typer.Option(help="Of its matrices; auto: the model's own, and bfloat16 of a GGUF file."),
    ] = "auto",
    as_json: Json = False,
) -> None:
    """Write a model as one GGUF file, read it back, and say how far its logits are.

    Needs the memory of one layer. What such a file cannot express is refused by name.
    """
    from headrace.engine import ExportMismatch, ModelError, convert_model
    from headrace.storage import StoreError

    if target.exists():
        raise CliError(f"{target} exists already; name one that does not")
    try:
        report = convert_model(model, target, dtype=dtype)
    except ModelError as error:
        raise CliError(str(error), Exit.REFUSED) from error
    except (ExportMismatch, StoreError) as error:
        raise CliError(str(error), Exit.FAILED) from error
    if as_json:
        print_json({"path": str(target), "report": report})
        return
    size = sum(file["bytes"] for file in report["files"])
    console().print(f"{human_bytes(size)} in {target}{describe_check(report)}", markup=False)
