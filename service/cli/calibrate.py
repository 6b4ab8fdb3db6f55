"""`headrace calibrate`: what each volume can do, kept there for layouts and plans to come."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .checks import volumes_of
from .options import Json, Volumes
from .output import CliError, Exit, human_bytes, print_json, print_table
from .serve import Config, DataDir, load_settings

if TYPE_CHECKING:
    from headrace.storage import Calibration


def calibrate(
    config: Config = None,
    data_dir: DataDir = None,
    volume: Volumes = None,
    full: Annotated[
        bool, typer.Option(help="Two minutes each, past the write cache; the wear is counted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure the volumes, 5 seconds each, one after the other. Stores made later go by it."""
    from headrace.storage import StoreError, VolumeConfig, calibrate_volume

    settings = load_settings(config, data_dir=data_dir, volumes=volume or None)
    found: dict[str, Calibration] = {}
    for text in volumes_of(settings):

        def report(part: str, text: str = text) -> None:
            typer.echo(f"{text}: {part}", err=True)

        try:
            found[text] = calibrate_volume(VolumeConfig.parse(text), full=full, report=report)
        except (StoreError, ValueError) as error:
            raise CliError(str(error), code=Exit.FAILED) from error
    if as_json:
        print_json([{"volume": text, **one.to_dict()} for text, one in found.items()])
    else:
        _show(found)


def _show(found: "dict[str, Calibration]") -> None:
    columns = ["volume", "I/O", "read", "write", "mixed", "first write", "written", "measured"]
    rows: list[list[Any]] = [
        [
            text,
            f"{one.active}, {one.filesystem}",
            *(
                f"{human_bytes(rate)}/s"
                for rate in (
                    one.read_bytes_per_second,
                    one.write_bytes_per_second,
                    one.mixed_bytes_per_second,
                    one.first_write_bytes_per_second,
                )
            ),
            human_bytes(one.written_bytes),
            one.measured_at,
        ]
        for text, one in found.items()
    ]
    print_table(columns, rows, empty="no volume")
