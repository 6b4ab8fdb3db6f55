"""Options that several commands share, and the client they stand for."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ..client import Client, DaemonError
from .output import CliError, json_by_itself

DEFAULT_URL = "http://127.0.0.1:8400"


def _by_output(context: typer.Context, value: bool) -> bool:
    """What was asked for; where nothing was, what suits the output."""
    source = context.get_parameter_source("as_json")
    return json_by_itself() if source is None or source.name == "DEFAULT" else value


Json = Annotated[
    bool,
    typer.Option(
        "--json/--text",
        callback=_by_output,
        show_default=False,  # what suits the output, which `help` says
        help="JSON for programs, text for people; by itself, JSON where output is no terminal "
        "(HEADRACE_OUTPUT=text or json decides otherwise).",
    ),
]
Url = Annotated[str, typer.Option("--url", envvar="HEADRACE_URL", help="Where the daemon listens.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="A file with the daemon's token. Without it: HEADRACE_TOKEN, else no token.",
    ),
]


def _complete_job(incomplete: str) -> list[tuple[str, str]]:
    """For the shell: the newest jobs that begin so, each with its status. Never fails."""
    try:
        with connect(os.environ.get("HEADRACE_URL", DEFAULT_URL), None) as client:
            jobs = client.jobs(limit=50)
    except (CliError, DaemonError):
        return []
    return [(job["id"], job["status"]) for job in jobs if job["id"].startswith(incomplete)]


JobId = Annotated[str, typer.Argument(help="The job's id, ftjob-…", autocompletion=_complete_job)]
ModelsDirs = Annotated[
    list[Path] | None,
    typer.Option("--models-dir", help="A folder of models, one directory each; repeatable."),
]
Volumes = Annotated[
    list[str] | None,
    typer.Option(
        "--volume",
        metavar="PATH[:BYTES]",
        help="A directory on a drive for the training state, with an optional limit; repeatable. "
        "Without one: volumes in the data directory.",
    ),
]
BenchVolumes = Annotated[
    list[str] | None,
    typer.Option(
        "--volume",
        metavar="PATH[:BYTES]",
        help="A directory on a drive for the training state, with an optional limit; repeatable. "
        "Without one: here.",
    ),
]
Device = Annotated[
    str | None, typer.Option("--device", help="auto, cpu or cuda; auto unless given.")
]
Strategy = Annotated[
    str | None,
    typer.Option(
        help="Place state and order work as that system does: resident, zero_offload, "
        "zero_infinity, megatrain, teraio, memascend, ratel, superoffload or unified; auto is the "
        "shortest step. It changes no bit of the result."
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="KEY=COLUMN",
        help="The rows' column that is meant by a key of their format, as prompt=question; "
        "repeatable.",
    ),
]
JobSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any field of the job: learning_rate=1e-5, adapter.rank=8, priority=5, "
        "limits.max_hours=2, method.dpo.hyperparameters.beta=0.2; repeatable.",
    ),
]
DeviceBytes = Annotated[
    str | None,
    typer.Option(
        "--device-bytes",
        metavar="BYTES",
        help="What training may take of the device's memory, such as 800MB or 2GiB. Unless given: "
        "90 % of what is free of a GPU's; on the CPU 40 % of free memory.",
    ),
]
HostBytes = Annotated[
    str | None,
    typer.Option(
        "--host-bytes",
        metavar="BYTES",
        help="What training may take of host memory beside the process itself, such as 800MB or "
        "2GiB. Unless given: 80 % of what is free; on the CPU 40 %.",
    ),
]


def parse_size(text: str | None) -> int | None:
    """'800MB' -> 800000000; CliError for what is no size."""
    from headrace.storage import parse_bytes

    if text is None:
        return None
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise CliError(str(error)) from error


def connect(url: str, token_file: Path | None) -> Client:
    """A client of the daemon at `url`, with the token that the options or environment give."""
    token = os.environ.get("HEADRACE_TOKEN")
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except OSError as error:
            raise CliError(f"cannot read the token file {token_file}: {error.strerror}") from error
    return Client(url, token=token)


def parse_columns(given: list[str] | None) -> dict[str, str]:
    """['prompt=question'] -> {'prompt': 'question'}; CliError for what no format has."""
    if not given:
        return {}
    from headrace.engine import check_columns

    columns: dict[str, str] = {}
    for text in given:
        key, equals, column = text.partition("=")
        if not equals or not column or key in columns:
            raise CliError(f"--column {text!r}: wanted each KEY=COLUMN once, as prompt=question")
        columns[key] = column
    try:
        check_columns(columns)
    except ValueError as error:
        raise CliError(f"--column: {error}") from error
    return columns
