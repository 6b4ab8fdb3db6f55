"""The commands of `headrace`. Only the command that needs torch imports it, when it runs."""

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from . import (
    bench,
    bench_io,
    bench_strategies,
    bundles,
    calibrate,
    checks,
    convert,
    data,
    files,
    fsck,
    jobs,
    logs,
    plan,
    rows,
    samples,
    serve,
    token,
    train,
)

app = typer.Typer(
    name="headrace",
    help="Fine-tune models larger than the memory of the box, streamed layer by layer from NVMe.",
    epilog="Exit codes: 0 good, 1 failed, 2 wrong usage, 3 no daemon answers, 4 refused, "
    "5 cancelled or paused, 130 interrupted.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Look at training rows.", no_args_is_help=True)
files_app = typer.Typer(help="Training files and results on a daemon.", no_args_is_help=True)
token_app = typer.Typer(help="Access tokens of a daemon on this machine.", no_args_is_help=True)
bench_app = typer.Typer(help="Measure this box.", no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ..status import product_version

        typer.echo(f"headrace {product_version()}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Fine-tune models larger than the memory of the box, streamed layer by layer from NVMe."""


COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Train": (serve.serve, train.train, convert.convert),
    "Jobs of a running daemon": (
        jobs.submit, jobs.watch, logs.logs, samples.samples, rows.rows, jobs.jobs,
        jobs.status, jobs.cancel, jobs.pause, jobs.resume, jobs.export,
        bundles.bundle, bundles.replay, jobs.free, jobs.models,
    ),
    "Look": (plan.plan, checks.doctor, calibrate.calibrate, fsck.fsck),
}  # fmt: skip


def _help_of(command: Callable[..., None]) -> str:
    """Its docstring, a paragraph a line, so that the terminal's width breaks the lines."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _add(to: typer.Typer, name: str | None, command: Callable[..., None], panel: str = "") -> None:
    to.command(name, help=_help_of(command), rich_help_panel=panel or None)(command)


for panel, commands in COMMANDS.items():
    for command in commands:
        _add(app, None, command, panel)
app.add_typer(data_app, name="data", rich_help_panel="Look")
app.add_typer(files_app, name="files", rich_help_panel="Jobs of a running daemon")
app.add_typer(bench_app, name="bench", rich_help_panel="Look")
app.add_typer(token_app, name="token", rich_help_panel="Look")
_add(token_app, "create", token.create)
_add(token_app, "list", token.list_tokens)
_add(token_app, "revoke", token.revoke)
_add(token_app, "mend", token.mend)
_add(files_app, "list", files.list_files)
_add(files_app, "upload", files.upload)
_add(files_app, "get", files.get)
_add(files_app, "delete", files.delete)
_add(data_app, "check", data.check)
_add(bench_app, "step", bench.step)
_add(bench_app, "io", bench_io.io)
_add(bench_app, "strategies", bench_strategies.strategies)
