"""Measure this box."""

import os
import platform
from dataclasses import replace
from typing import Annotated, Any

import typer

from .options import BenchVolumes, DeviceBytes, HostBytes, Json, parse_size
from .output import CliError, console, human_bytes, print_json, print_table

Shape = Annotated[
    str,
    typer.Option(
        help="A named shape, filled with random weights; `headrace plan --shape list` names them."
    ),
]
Layers = Annotated[int | None, typer.Option(min=1, help="Shorten or lengthen it.")]
Slots = Annotated[list[int] | None, typer.Option(min=1, help="Repeatable; 1, 3.")]
BatchRows = Annotated[int, typer.Option(min=1, help="Rows a step.")]
MicrobatchRows = Annotated[int, typer.Option(min=1, help="Rows at once.")]
TokensPerRow = Annotated[int, typer.Option(min=2, help="Tokens a row.")]
Steps = Annotated[int, typer.Option(min=1, help="Timed steps, after one that warms up.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
ComputeDtype = Annotated[
    str | None, typer.Option(help="float32 or bfloat16; by default the device's own.")
]
Compile = Annotated[str, typer.Option(help="torch.compile of the layers: off, static or dynamic.")]
StateTier = Annotated[str, typer.Option(help="Home of the state: nvme, host, device, or auto.")]
ActivationTier = Annotated[
    str,
    typer.Option(help="Where inputs of layers wait for backward: device, host, nvme, or auto."),
]
MaxGradNorm = Annotated[float, typer.Option(help="Clip the global norm at this; 1e9 never clips.")]
Deterministic = Annotated[bool, typer.Option(help="Deterministic algorithms.")]
StateFormat = Annotated[str, typer.Option(help="How state is held: exact, q8, sr_bf16 or sr_q8.")]
Method = Annotated[str, typer.Option(help="What is trained: full, or lora beside a frozen model.")]
LoraRank = Annotated[int, typer.Option(min=1, help="Rank of adapters, on every projection.")]
FrozenFormat = Annotated[str, typer.Option(help="How what is frozen is held: auto, nf4 or int8.")]
Recompute = Annotated[str, typer.Option(help="Layers computed again in backward: auto, all, none.")]
OptimizerDevice = Annotated[
    str, typer.Option(help="What updates layers in host memory: auto, device or host.")
]
HostShare = Annotated[
    float | None, typer.Option(help="With auto: the share of these layers that the CPU updates.")
]
ClipWay = Annotated[str, typer.Option(help="How clipping is reached: auto, or one of its ways.")]
Durability = Annotated[
    str,
    typer.Option(help="step: commit every step to the volumes. none: never; then only what lives "
                 "on NVMe is written."),
]  # fmt: skip
Init = Annotated[
    str,
    typer.Option(help="random: weights are drawn straight into their tiers; no files are read."),
]
Throttle = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Slow each volume to so many bytes a second."),
]


def step(
    shape: Shape = "tiny",
    layers: Layers = None,
    init: Init = "random",
    slots: Slots = None,
    batch_rows: BatchRows = 8,
    microbatch_rows: MicrobatchRows = 4,
    tokens_per_row: TokensPerRow = 128,
    steps: Steps = 3,
    device: Device = "cpu",
    compute_dtype: ComputeDtype = None,
    compile: Compile = "off",
    state_tier: StateTier = "nvme",
    state_format: StateFormat = "exact",
    method: Method = "full",
    lora_rank: LoraRank = 16,
    frozen_format: FrozenFormat = "auto",
    recompute: Recompute = "auto",
    activation_tier: ActivationTier = "auto",
    clip_way: ClipWay = "auto",
    optimizer_device: OptimizerDevice = "auto",
    optimizer_host_share: HostShare = None,
    max_grad_norm: MaxGradNorm = 1.0,
    deterministic: Deterministic = True,
    durability: Durability = "step",
    device_bytes: DeviceBytes = None,
    host_bytes: HostBytes = None,
    volume: BenchVolumes = None,
    throttle: Throttle = None,
    as_json: Json = False,
) -> None:
    """Time the step alone with each number of slots: does the overlap hold?

    With state on NVMe, a step with 3 slots should take about the larger of computing and moving,
    with 1 slot the sum.
    """
    _check("init", init, ("random",))
    _check("durability", durability, ("step", "none"))
    commit = durability == "step"
    on_gpu = device == "cuda"
    settings = {
        "device": device, "compile": compile, "state_tier": state_tier,
        "state_format": state_format, "recompute": recompute, "clip_way": clip_way,
        "method": method, "lora_rank": lora_rank, "frozen_format": frozen_format,
        "optimizer_device": optimizer_device, "optimizer_host_share": optimizer_host_share,
        "activation_tier": activation_tier,
        "max_grad_norm": max_grad_norm, "deterministic": deterministic,
        "batch_rows": batch_rows, "microbatch_rows": microbatch_rows,
        "device_bytes": parse_size(device_bytes), "host_bytes": parse_size(host_bytes),
        "compute_dtype": compute_dtype or ("bfloat16" if on_gpu else "float32"),
        "loss_chunk_tokens": 4096 if on_gpu else 256,
        "commit_every_steps": 1 if commit else 2**31,
    }  # fmt: skip
    result = _time(
        settings, shape=shape, layers=layers, volumes=volume or ["."],
        throttle=parse_size(throttle), tokens_per_row=tokens_per_row, slots=slots or [1, 3],
        num_steps=steps, commit=commit, tell=_silent if as_json else console().print,
    )  # fmt: skip
    (print_json if as_json else _show)(result)


def _silent(line: str) -> None:
    """Programs wait for the end."""


def _check(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise CliError(f"--{option} is {value!r}; wanted one of {', '.join(choices)}")


def _time(
    settings: dict[str, Any],
    *,
    shape: str,
    layers: int | None,
    volumes: list[str],
    throttle: int | None,
    **timing: Any,
) -> dict[str, Any]:
    from headrace.engine import CannotFit, TrainConfig, bench_step, method_spec, shape_spec
    from headrace.storage import StoreError, VolumeConfig

    try:
        drives = [
            replace(VolumeConfig.parse(text), throttle_bytes_per_second=throttle)
            for text in volumes
        ]
        config = TrainConfig(model=shape, dataset="", **settings)
        spec = method_spec(shape_spec(shape, layers), config)
        result = bench_step(config, spec=spec, volumes=drives, **timing)
    except (CannotFit, ValueError, StoreError) as error:
        raise CliError(str(error)) from error
    # Of a frozen weight there is no gradient: 4 operations a token instead of 6.
    weights = 4 * spec.num_params + 2 * spec.num_trained_params
    flops = weights * result["tokens_per_step"]
    for run in result["runs"].values():
        run["model_tflops"] = flops / run["step_seconds"] / 1e12
        run["tokens_per_second"] = result["tokens_per_step"] / run["step_seconds"]
    return {"shape": shape, "layers": layers, "throttle": throttle, **result, "box": box()}


def box() -> dict[str, Any]:
    """What was measured on: processor, Python, and the versions that matter."""
    from importlib.metadata import version

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
        planned = f"{run['planned_seconds']:.2f}"
        rows.append([count, f"{run['step_seconds']:.2f}", planned, tflops, ratio, stalled, moved])
    columns = [
        "slots",
        "step s",
        "planned s",
        "model TFLOPS",
        "x limit",
        "waited to read s",
        "moved a step",
    ]
    print_table(columns, rows, empty="")
    for count, run in result["runs"].items():
        steps = len(run["all_step_seconds"])
        written = ", ".join(
            f"{kind} {human_bytes(size // steps)}" for kind, size in run["written_bytes"].items()
        )
        out.print(
            f"{count} slots: {run['tokens_per_second']:.4g} tokens/s; first step after "
            f"{run['start_seconds']:.1f} s; a step and its commit wrote {written}"
        )
    if "overlapped_seconds" in result:
        out.print(f"limit with 1 slot: {result['serial_seconds']:.2f} s, compute + read + write; "
                  f"with more: {result['overlapped_seconds']:.2f} s, the larger of compute and "
                  "read + write, in each pass")  # fmt: skip
