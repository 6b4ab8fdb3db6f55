"""`headrace serve`: the daemon, and the settings that other commands share with it."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Device, DeviceBytes, HostBytes, Json, ModelsDirs, Volumes
from .output import CliError, Exit, console, print_json

if TYPE_CHECKING:
    from ..settings import Settings

Config = Annotated[
    Path | None, typer.Option("--config", help="A TOML file; options given here override it.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Where jobs, files and the journal live; ~/.local/share/headrace unless given.",
    ),
]


def serve(
    config: Config = None,
    data_dir: DataDir = None,
    models_dir: ModelsDirs = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; 127.0.0.1 unless given.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port; 8400 unless given.")
    ] = None,
    volume: Volumes = None,
    device: Device = None,
    device_bytes: DeviceBytes = None,
    host_bytes: HostBytes = None,
    log_level: Annotated[
        str | None, typer.Option(help="debug, info, warning or error; debug logs every request.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the daemon: the API, its queue of jobs, and the worker that trains them.

    Its log goes to standard error: as text to a terminal and with --text, else as JSON. SIGTERM
    finishes the step in hand, commits and exits; a second one stops at once.
    """
    settings = load_settings(
        config,
        data_dir=data_dir,
        models_dir=models_dir or None,
        host=host,
        port=port,
        volumes=volume or None,
        device=device,
        device_bytes=device_bytes,
        host_bytes=host_bytes,
        log_level=log_level,
    )
    run_daemon(settings, as_json=as_json)


def run_daemon(settings: "Settings", *, as_json: bool) -> None:
    """Listen, make the app, say where, and serve until a signal ends the daemon.

    What the app is made of is imported once the socket listens and /livez is answered.
    """
    from headrace.storage import StoreError

    from ..data_dir import DaemonRunning, DataDirUnusable
    from ..server import address, listen, run

    for path in settings.models_dir:
        if not path.is_dir():
            reason = f"models directory {path} is not there"
            raise CliError(
                f"{reason}; make or mount it, or give another --models-dir", Exit.REFUSED
            )
    try:
        sock = listen(settings.host, settings.port)
    except OSError as error:
        reason = (
            f"cannot listen on {settings.host}:{settings.port}: {os.strerror(error.errno or 0)}"
        )
        raise CliError(f"{reason}; is a daemon running already? --port takes another") from error

    def say_where() -> None:
        if as_json:
            print_json({"url": address(sock), "pid": os.getpid(), "data_dir": settings.data_dir})
        else:
            console().print(f"headrace listens on {address(sock)}, data in {settings.data_dir}")

    def make_app() -> Any:  # a FastAPI, which is not imported yet
        from ..logs import configure

        # --json and --text count for the log too; by itself it goes by its own place, stderr
        was_chosen = as_json is sys.stdout.isatty()
        configure(settings.log_level, as_text=not as_json if was_chosen else None)
        from ..app import create_app
        from ..daemon import Daemon

        return create_app(Daemon(settings))

    with sock:
        try:
            run(make_app, sock, on_ready=say_where)
        except (DaemonRunning, DataDirUnusable, StoreError) as error:
            raise CliError(str(error), Exit.REFUSED) from error


def load_settings(config: Path | None, **given: Any) -> "Settings":
    """The settings of file, environment and options; CliError that names what is wrong."""
    from pydantic import ValidationError

    from ..settings import Settings

    try:
        return Settings.load(config, **given)
    except ValidationError as error:
        reasons = (
            f"{'.'.join(map(str, e['loc']))}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        )
        raise CliError(f"the settings are wrong: {'; '.join(reasons)}") from error
    except (OSError, ValueError) as error:
        raise CliError(f"cannot read the settings: {error}") from error
