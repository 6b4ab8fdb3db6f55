"""The commands that look: at the box, at the state on disk, at training rows, at speed."""

from typing import TYPE_CHECKING

import typer

from .options import Device, Json, Volumes
from .output import CliError, Exit, print_json, print_table, telling
from .serve import Config, DataDir, load_settings

if TYPE_CHECKING:
    from headrace.storage import VolumeConfig

    from ..settings import Settings

_MARKS = {"pass": "[green]pass[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}


def doctor(
    config: Config = None,
    data_dir: DataDir = None,
    volume: Volumes = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Check that this box can train: Python, torch, device, memory, volumes. 1 when it cannot."""
    from .doctor import examine

    settings = load_settings(config, data_dir=data_dir, volumes=volume or None, device=device)
    volumes, home = volumes_of(settings), settings.data_dir
    with telling() as tell:
        checks = list(examine(volumes, home, device=settings.device, tell=tell))
    if as_json:
        print_json([check.to_dict() for check in checks])
    else:
        rows = [[_MARKS[c.verdict], c.name, c.found + (f"\n{c.fix}" if c.fix else "")]
                for c in checks]  # fmt: skip
        print_table(["", "check", "found"], rows, empty="")
    raise typer.Exit(Exit.FAILED if any(c.verdict == "fail" for c in checks) else Exit.OK)


def volumes_of(settings: "Settings") -> list[str]:
    """The volumes; the default one is made, as the daemon would make it."""
    if not settings.volumes:
        settings.data_dir.joinpath("volumes").mkdir(parents=True, exist_ok=True)
    return list(settings.volume_list)


def store_names(volumes: "list[VolumeConfig]") -> list[str]:
    """The stores that have a directory on any of the volumes."""
    found: set[str] = set()
    for volume in volumes:
        if not volume.path.is_dir():
            raise CliError(f"volume {volume.path} is not a directory; name it with --volume")
        found |= {path.name for path in volume.path.iterdir() if path.is_dir()}
    return sorted(name for name in found if not name.startswith("."))
