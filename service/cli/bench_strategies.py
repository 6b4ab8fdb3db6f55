"""`headrace bench strategies`: every published system's way on one model, held to its formula."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .bench import Layers, MicrobatchRows, Shape, TokensPerRow, box
from .options import BenchVolumes, DeviceBytes, HostBytes, Json, parse_size
from .output import CliError, Exit, console, human_bytes, print_json, print_table

if TYPE_CHECKING:
    from headrace.engine import TrainConfig

LINKS = ("nvme_read", "nvme_write", "h2d", "d2h")
TOLERANCE = 0.02  # of the formula

Only = Annotated[list[str] | None, typer.Option(help="These alone; repeatable.")]


def strategies(
    shape: Shape = "smollm2-135m",
    layers: Layers = None,
    only: Only = None,
    batch_rows: Annotated[int, typer.Option(min=1, help="Rows a step.")] = 4,
    microbatch_rows: MicrobatchRows = 2,
    tokens_per_row: TokensPerRow = 64,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps, after one.")] = 3,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    device_bytes: DeviceBytes = None,
    host_bytes: HostBytes = None,
    volume: BenchVolumes = None,
    throttle: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Slow each volume to that a second.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run every strategy on the same random model and rows, and hold it to its own promise.

    Each must move the bytes that its formula says, within 2 %, and end with the same bits as all
    others. The exit code is 1 when one does not.
    """
    from headrace.engine import STRATEGIES, CannotFit, bench_strategies, shape_spec
    from headrace.storage import StoreError, VolumeConfig

    try:
        config = _config(device, batch_rows, microbatch_rows, device_bytes, host_bytes)
        drives = [
            replace(VolumeConfig.parse(text), throttle_bytes_per_second=parse_size(throttle))
            for text in volume or ["."]
        ]
        spec = shape_spec(shape, layers)
        rows = []
        for row in bench_strategies(
            config,
            spec=spec,
            tokens_per_row=tokens_per_row,
            volumes=drives,
            names=only or tuple(STRATEGIES),
            num_steps=steps,
        ):
            typer.echo(f"{row['strategy']}: {row.get('refused') or 'done'}", err=True)
            rows.append(row)
    except (CannotFit, KeyError, ValueError, StoreError) as error:
        raise CliError(str(error)) from error
    result = {
        "shape": shape, "layers": spec.num_layers, "num_params": spec.num_params,
        "tokens_per_step": batch_rows * tokens_per_row, "device": device, "throttle": throttle,
        "holds": holds(rows), "strategies": rows, "box": box(),
    }  # fmt: skip
    if as_json:
        print_json(result)
    else:
        _show(result)
    raise typer.Exit(Exit.OK if result["holds"] else Exit.FAILED)


def _config(
    device: str, batch_rows: int, microbatch_rows: int, device_bytes: str | None,
    host_bytes: str | None,
) -> "TrainConfig":  # fmt: skip
    """What all strategies have in common."""
    from headrace.engine import TrainConfig

    on_gpu = device == "cuda"
    return TrainConfig(
        model="random",
        dataset="",
        device=device,  # type: ignore[arg-type]
        compute_dtype="bfloat16" if on_gpu else "float32",
        batch_rows=batch_rows,
        microbatch_rows=microbatch_rows,
        packing="off",
        loss_chunk_tokens=4096 if on_gpu else 256,
        max_grad_norm=1e9,
        device_bytes=parse_size(device_bytes),
        host_bytes=parse_size(host_bytes),
    )


def holds(rows: list[dict[str, Any]]) -> bool:
    """Whether every strategy that could run moved its formula's bytes, and all ended alike."""
    ran = [row for row in rows if "refused" not in row]
    alike = len({row["digest"] for row in ran}) == 1
    return alike and all(row["worst_share"] <= TOLERANCE for row in ran)


def _show(result: dict[str, Any]) -> None:
    params = result["num_params"]
    out = console()
    out.print(f"{result['shape']}, {result['layers']} layers: {params:,} parameters, "
              f"{result['tokens_per_step']} tokens a step on {result['device']}")  # fmt: skip
    rows = []
    for one in result["strategies"]:
        if "refused" in one:
            rows.append([one["strategy"], one["refused"], *[""] * 8])
            continue
        tiers = ", ".join(f"{count} {tier}" for tier, count in sorted(one["tiers"].items()))
        moved = " / ".join(f"{one['link_bytes'][link] / params:.2f}" for link in LINKS)
        rows.append(
            [
                one["strategy"],
                tiers,
                one["way"],
                moved,
                f"{100 * one['worst_share']:.2f} %",
                one["digest"][:8],
                f"{one['step_seconds']:.3f}",
                f"{one['planned_seconds']:.3f}",
                " / ".join(human_bytes(one[f"{tier}_bytes"]) for tier in ("device", "host")),
                human_bytes(one["staging_bytes"]),
            ]
        )
    columns = [
        "strategy", "records on", "update", "B/param read / written / up / down", "off formula",
        "bits", "step s", "planned s", "device / host", "staging",
    ]  # fmt: skip
    print_table(columns, rows, empty="")
    ran = [one for one in result["strategies"] if "digest" in one]
    common = ran[0]["common_staging_bytes"] if ran else 0
    out.print(f"staging where every buffer is as large as the largest: {human_bytes(common)}")
    out.print("all held" if result["holds"] else "[red]not all held[/]")
