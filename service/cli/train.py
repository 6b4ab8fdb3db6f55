"""`headrace train`: one job in the foreground, the same code, no daemon."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..client import ServerEvent
from ..rates import Rates
from .options import (
    Device,
    DeviceBytes,
    HostBytes,
    JobSettings,
    Json,
    ModelsDirs,
    Strategy,
    Volumes,
)
from .output import CliError, Exit, console, print_json
from .progress import Progress
from .serve import Config, DataDir, load_settings

if TYPE_CHECKING:
    from headrace.engine import RunEvent

    from .watch import Bar

StateFormat = Annotated[
    str | None, typer.Option(help="exact, q8 (economy), sr_bf16 or sr_q8, in place of the job's.")
]


def train(
    job_file: Annotated[Path, typer.Argument(help="A create body as JSON or YAML.")],
    model: Annotated[
        Path | None, typer.Option(help="The model's directory, in place of the name in the job.")
    ] = None,
    state_format: StateFormat = None,
    strategy: Strategy = None,
    settings: JobSettings = None,
    config: Config = None,
    data_dir: DataDir = None,
    models_dir: ModelsDirs = None,
    volume: Volumes = None,
    device: Device = None,
    device_bytes: DeviceBytes = None,
    host_bytes: HostBytes = None,
    as_json: Json = False,
) -> None:
    """Train one job in the foreground. The same command again goes on from the last commit.

    The files that the job names are local ones. Ctrl-C finishes the step in hand and commits; a
    second one ends at once.
    """
    from ..child import become_like_a_worker
    from ..foreground import train_foreground
    from .watch import Bar

    become_like_a_worker()
    here = load_settings(
        config,
        data_dir=data_dir,
        models_dir=models_dir or None,
        volumes=volume or None,
        device=device,
        device_bytes=device_bytes,
        host_bytes=host_bytes,
    )
    body = _asked(job_file, {"state_format": state_format, "strategy": strategy}, settings or [])
    progress = Progress(job_id=job_file.stem, status="running")
    bar = None if as_json else Bar(progress, console())
    shown: AbstractContextManager[object] = bar or nullcontext()
    try:
        with shown:
            done = train_foreground(
                body,
                settings=here,
                model_path=model,
                beside=job_file.absolute().parent,
                emit=printer(progress, bar),
            )
    except _failures() as error:
        raise CliError(str(error), Exit.FAILED) from error
    except _refusals() as error:
        raise CliError(str(error), Exit.REFUSED) from error
    result = done.result
    if as_json:
        print_json({"event": "end", **result.to_dict(), "job_dir": done.job_dir})
    else:
        where = result.export_dir or done.job_dir
        console().print(f"{result.outcome} at step {result.step}: {where}", markup=False)
    raise typer.Exit(Exit.OK if result.outcome == "succeeded" else Exit.UNFINISHED)


def _asked(
    job_file: Path, instead: Mapping[str, str | None], settings: list[str]
) -> dict[str, Any]:
    """What the job's file asks for, with what was given in its place."""
    from .job_file import read_job_file
    from .settings import apply_settings

    body = read_job_file(job_file)
    body |= {name: value for name, value in instead.items() if value is not None}
    apply_settings(body, settings, method=None)
    return body


def _failures() -> tuple[type[Exception], ...]:
    """What ends a run that had begun."""
    from headrace.engine import ExportMismatch, MemoryGone, NotFinite, StateLost

    return ExportMismatch, MemoryGone, NotFinite, StateLost


def _refusals() -> tuple[type[Exception], ...]:
    """What a run is refused with, before it begins or goes on."""
    from headrace.engine import (
        BadSetting,
        CannotFit,
        ModelError,
        SettingsChanged,
        StrategyConflict,
    )
    from headrace.storage import StoreError

    from ..errors import ApiError
    from ..lockfile import LockHeld

    return (ApiError, BadSetting, CannotFit, ModelError, SettingsChanged, StoreError,
            StrategyConflict, LockHeld)  # fmt: skip


def printer(progress: Progress, bar: "Bar | None") -> "Callable[[RunEvent], None]":
    """What to do with each event of the run: move the bar, or print a JSON line without one."""
    rates = Rates()

    def show(event: "RunEvent") -> None:
        data = {**event.data, **rates.add(event.data)} if event.type == "metrics" else event.data
        seen = {"message": event.message, "level": event.level, "step": event.step, "data": data}
        if bar is None:
            print_json({"event": event.type, **seen})
        else:
            bar.show(progress.apply(ServerEvent(id="", event=event.type, data=seen)))
            for text in event.data["samples"] if event.type == "samples" else ():
                bar.show(f"  {text['source']}: {text['completion']}")

    return show
