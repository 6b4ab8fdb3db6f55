"""`headrace calibrate`: what drives and compute can do, kept for layouts and plans to come."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .checks import volumes_of
from .options import Device, Json, Volumes, parse_size
from .output import CliError, Exit, console, human_bytes, print_json, print_table
from .serve import Config, DataDir, load_settings

if TYPE_CHECKING:
    from headrace.engine import Rates
    from headrace.storage import Calibration

    from ..settings import Settings

_USUAL_SHAPE = {"cpu": "smollm2-135m", "cuda": "llama3-8b"}  # where no model is named


def calibrate(
    config: Config = None,
    data_dir: DataDir = None,
    volume: Volumes = None,
    device: Device = None,
    model: Annotated[
        Path | None, typer.Option(help="Time this model's layers; only headers are read.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Time the layers of a shape; `headrace plan --shape list` names them."),
    ] = None,
    drives: Annotated[bool, typer.Option(help="Measure the volumes.")] = True,
    compute: Annotated[bool, typer.Option(help="Measure copies, memory and layers.")] = True,
    rated: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="What each drive may be written in its life, as its "
                     "maker says, such as 1200TB; without it what the drive tells."),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(help="Two minutes a volume, past the write cache, its wear counted; longer "
                          "for every other figure."),
    ] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Measure the volumes, 5 seconds each, then compute, some seconds; all of it is kept.

    Stores made later are dealt by it, and plans go by it. The first job of a daemon measures what
    is not known yet by itself, and a later one again what was measured on a busy box or what a run
    since has found to be off by a fifth.
    """
    settings = load_settings(config, data_dir=data_dir, volumes=volume or None, device=device)
    named = volumes_of(settings)
    volumes = _measure_volumes(named, full) if drives else {}
    rates = (
        _measure_compute(settings, named, model, shape, full, parse_size(rated))
        if compute
        else None
    )
    if as_json:
        print_json({
            "volumes": [{"volume": text, **one.to_dict()} for text, one in volumes.items()],
            "compute": rates and rates.to_dict(),
        })  # fmt: skip
        return
    if drives:
        _show_volumes(volumes)
    if rates is not None:
        _show_compute(rates)


def _measure_volumes(named: list[str], full: bool) -> "dict[str, Calibration]":
    from headrace.storage import StoreError, VolumeConfig, calibrate_volume

    found: dict[str, Calibration] = {}
    for text in named:

        def report(part: str, text: str = text) -> None:
            typer.echo(f"{text}: {part}", err=True)

        try:
            found[text] = calibrate_volume(VolumeConfig.parse(text), full=full, report=report)
        except (StoreError, ValueError, OSError) as error:
            raise CliError(str(error), code=Exit.FAILED) from error
    return found


def _measure_compute(
    settings: "Settings",
    named: list[str],
    model: Path | None,
    shape: str | None,
    full: bool,
    rated: int | None,
) -> "Rates":
    from headrace.engine import (
        ModelError,
        TrainConfig,
        calibrate_compute,
        read_model_spec,
        shape_spec,
    )
    from headrace.storage import StoreError, VolumeConfig

    from ..child import become_like_a_worker
    from ..site import Site

    become_like_a_worker()
    where = Site.of(settings).device
    try:
        spec = read_model_spec(model) if model else shape_spec(shape or _USUAL_SHAPE[where])
    except (ModelError, ValueError) as error:
        raise CliError(str(error)) from error
    on_gpu = where == "cuda"
    config = TrainConfig(
        model="",
        dataset="",
        device=where,
        compute_dtype="bfloat16" if on_gpu else "float32",
        loss_chunk_tokens=4096 if on_gpu else 256,
    )
    typer.echo("compute", err=True)
    volumes: list[VolumeConfig] = [VolumeConfig.parse(text) for text in named]
    try:
        return calibrate_compute(spec, config, volumes, full=full, rated_bytes=rated)
    except (StoreError, OSError) as error:
        raise CliError(str(error), code=Exit.FAILED) from error


def _show_volumes(found: "dict[str, Calibration]") -> None:
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
    for text, one in found.items():
        _warn(text, one.doubt)


def _warn(what: str, doubt: str) -> None:
    """That a figure is worth little, where it is."""
    if doubt:
        typer.echo(f"warning: {what} {doubt}; calibrate again when it is quiet", err=True)


def _show_compute(rates: "Rates") -> None:
    from headrace.storage import busy_words

    both = "" if rates.both is None else f", each way at once {human_bytes(rates.both)}/s"
    facts = [
        ["up to the device", f"{human_bytes(rates.h2d)}/s{both}"],
        ["down from it", f"{human_bytes(rates.d2h)}/s"],
        ["host memory", f"{human_bytes(rates.host_memory)}/s"],
        ["device memory", f"{human_bytes(rates.device_memory)}/s"],
        *([name, f"{rate:.3g} parameters/s"] for name, rate in rates.work.items()),
    ]
    newest = max(rates.shapes.values(), key=lambda one: one.measured_at)
    facts += [
        [f"layer, {one.tokens} tokens", f"{one.forward_flops / 1e12:.3g} TFLOPS forward, "
                                        f"{one.backward_flops / 1e12:.3g} backward"]
        for one in newest.layers
    ]  # fmt: skip
    facts.append(["head", f"{newest.head_flops / 1e12:.3g} TFLOPS"])
    console().print()
    print_table([], facts, empty="")
    _warn("compute", busy_words(newest.held_up))
