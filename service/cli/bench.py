"""Measure this box."""

import os
import platform
from importlib.metadata import version
from typing import Annotated, Any

import typer

from .options import ByteSize, Json, Volumes, parse_size
from .output import CliError, console, human_bytes, print_json, print_table


def step(
    shape: Annotated[str, typer.Option(help="A named shape, filled with random weights.")] = "tiny",
    layers: Annotated[int | None, typer.Option(min=1, help="Shorten or lengthen it.")] = None,
    slots: Annotated[list[int] | None, typer.Option(min=1, help="Repeatable; 1, 3.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows a step.")] = 8,
    microbatch_rows: Annotated[int, typer.Option(min=1, help="Rows at once.")] = 4,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens a row.")] = 128,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps, after one that warms up.")] = 3,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    device_bytes: ByteSize = None,
    host_bytes: ByteSize = None,
    volume: Volumes = None,
    throttle: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Slow each volume to so many bytes a second."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Time the step alone with each number of slots, state on NVMe: does the overlap hold?

    With 3 slots a step should take about the larger of computing and moving, with 1 slot the sum.
    """
    from headrace.engine import CannotFit, TrainConfig, bench_step, shape_spec
    from headrace.storage import StoreError, VolumeConfig

    rate = parse_size(throttle)
    try:
        volumes = [
            VolumeConfig(path=given.path, limit_bytes=given.limit_bytes,
                         throttle_bytes_per_second=rate)
            for given in map(VolumeConfig.parse, volume or ["."])
        ]  # fmt: skip
        config = TrainConfig(
            model=shape,
            dataset="",
            device=device,  # type: ignore[arg-type]  # checked by TrainConfig
            batch_rows=rows,
            microbatch_rows=microbatch_rows,
            device_bytes=parse_size(device_bytes),
            host_bytes=parse_size(host_bytes),
            state_tier="nvme",
        )
        result = bench_step(
            config,
            spec=shape_spec(shape, layers),
            tokens_per_row=tokens,
            slots=slots or [1, 3],
            volumes=volumes,
            num_steps=steps,
        )
    except (CannotFit, ValueError, StoreError) as error:
        raise CliError(str(error)) from error
    result = {"shape": shape, "layers": layers, "throttle": rate, **result, "box": box()}
    if as_json:
        print_json(result)
    else:
        _show(result)


def box() -> dict[str, Any]:
    """What was measured on: processor, Python, and the versions that matter."""
    versions = {name: version(name) for name in ("torch", "transformers")}
    return {"cpus": os.cpu_count(), "machine": platform.machine(), "system": platform.platform(),
            "python": platform.python_version(), **versions}  # fmt: skip


def _show(result: dict[str, Any]) -> None:
    out = console()
    out.print(f"{result['shape']}: {result['num_params']:,} parameters, "
              f"{result['tokens_per_step']} tokens a step on {result['device']}")  # fmt: skip
    rows = []
    for count, run in result["runs"].items():
        moved = ", ".join(f"{k} {human_bytes(v)}" for k, v in run["link_bytes"].items() if v)
        ratio = f"{run['ratio_to_limit']:.2f}" if "ratio_to_limit" in run else ""
        stalled = f"{run['stall_read_seconds']:.2f}"
        rows.append([count, f"{run['step_seconds']:.2f}", ratio, stalled, moved])
    columns = ["slots", "step s", "x limit", "waited to read s", "moved a step"]
    print_table(columns, rows, empty="")
    if "overlapped_seconds" in result:
        out.print(f"limit with 1 slot: {result['serial_seconds']:.2f} s, compute + read + write; "
                  f"with more: {result['overlapped_seconds']:.2f} s, the larger of compute and "
                  "read + write, in each pass")  # fmt: skip
