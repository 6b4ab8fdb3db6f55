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
    compute_dtype: Annotated[
        str | None, typer.Option(help="float32 or bfloat16; by default the device's own.")
    ] = None,
    compile: Annotated[
        str, typer.Option(help="torch.compile of the layers: off, static or dynamic.")
    ] = "off",
    state_tier: Annotated[
        str, typer.Option(help="Where the state lives: nvme, host, device, or auto.")
    ] = "nvme",
    max_grad_norm: Annotated[
        float, typer.Option(help="Clip the global norm at this; 1e9 never clips.")
    ] = 1.0,
    deterministic: Annotated[bool, typer.Option(help="Deterministic algorithms.")] = True,
    commit: Annotated[bool, typer.Option(help="Commit every step to the volumes.")] = True,
    device_bytes: ByteSize = None,
    host_bytes: ByteSize = None,
    volume: Volumes = None,
    throttle: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Slow each volume to so many bytes a second."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Time the step alone with each number of slots: does the overlap hold?

    With state on NVMe, a step with 3 slots should take about the larger of computing and moving,
    with 1 slot the sum.
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
            compute_dtype=compute_dtype or ("bfloat16" if device == "cuda" else "float32"),  # type: ignore[arg-type]
            compile=compile,  # type: ignore[arg-type]
            state_tier=state_tier,  # type: ignore[arg-type]
            max_grad_norm=max_grad_norm,
            deterministic=deterministic,
            loss_chunk_tokens=4096 if device == "cuda" else 256,
            commit_every_steps=1 if commit else 2**31,
        )
        result = bench_step(
            config,
            spec=shape_spec(shape, layers),
            tokens_per_row=tokens,
            slots=slots or [1, 3],
            volumes=volumes,
            num_steps=steps,
            commit=commit,
        )
    except (CannotFit, ValueError, StoreError) as error:
        raise CliError(str(error)) from error
    for run in result["runs"].values():
        flops = 6 * result["num_params"] * result["tokens_per_step"]
        run["model_tflops"] = flops / run["step_seconds"] / 1e12
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
        tflops = f"{run['model_tflops']:.3g}"
        rows.append([count, f"{run['step_seconds']:.2f}", tflops, ratio, stalled, moved])
    columns = ["slots", "step s", "model TFLOPS", "x limit", "waited to read s", "moved a step"]
    print_table(columns, rows, empty="")
    if "overlapped_seconds" in result:
        out.print(f"limit with 1 slot: {result['serial_seconds']:.2f} s, compute + read + write; "
                  f"with more: {result['overlapped_seconds']:.2f} s, the larger of compute and "
                  "read + write, in each pass")  # fmt: skip
