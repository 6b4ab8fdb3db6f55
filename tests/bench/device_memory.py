"""Does a run stay within its device budget? Peak memory of whole steps beside what was planned.

Each budget runs in a process of its own. On a GPU the driver says what is used (NVML), minus what
was used when the process started, so that CUDA's own start-up counts; on a CPU, where device and
host are one memory, the resident memory above that after the imports.

    python -m bench.device_memory --device cuda --budget 8GiB --budget 16GiB --json memory.json
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from bench.contest import run_apart
from bench.inputs import box, finish
from bench.watch import PeakMemory, resident, used_on_gpu
from headrace.engine import (
    Box,
    TrainConfig,
    bench_step,
    fit_microbatch,
    shape_spec,
)
from headrace.storage import parse_bytes

GIB = 2**30
BUDGETS = ("8GiB", "16GiB", "24GiB", "48GiB")


def main() -> int:
    """Run every budget; 0 when all hold."""
    arguments = parse_arguments()
    if arguments.child:
        print(json.dumps(measure(arguments, parse_bytes(arguments.child))))
        return 0
    runs = []
    for budget in arguments.budget or BUDGETS:
        given = [*sys.argv[1:], "--child", budget]
        done = run_apart("bench.device_memory", given, limit=arguments.seconds)
        runs.append({"budget": budget, **done.pop("result", {}), **done})
        print(line(runs[-1]), file=sys.stderr, flush=True)
    holds = all(run.get("holds", False) for run in runs)
    shown = {name: str(value) for name, value in vars(arguments).items()}
    finish({"holds": holds, "runs": runs, "arguments": shown, "box": box()}, arguments.json)
    return 0 if holds else 1


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--budget", action="append", help="repeatable; 8, 16, 24 and 48 GiB")
    parser.add_argument("--host-bytes", type=parse_bytes, default=96 * GIB)
    parser.add_argument("--shape", default="llama3-3b")
    parser.add_argument("--layers", type=int, help="shorten the shape")
    parser.add_argument("--tokens-per-row", type=int, default=1024)
    parser.add_argument("--batch-rows", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--compile", default="static")
    parser.add_argument("--max-grad-norm", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=150, help="limit of each run")
    parser.add_argument("--json", type=Path, help="also write the result there")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(arguments: argparse.Namespace, budget: int) -> dict[str, Any]:
    """A few steps within the budget, the microbatch as large as fits; bytes."""
    cuda = arguments.device == "cuda"
    with PeakMemory(used_on_gpu() if cuda else resident) as peak:
        if cuda:
            torch.zeros(1, device="cuda")
            torch.cuda.synchronize()
        started = peak.sample()
        config = make_config(arguments, budget)
        found = bench_step(
            config,
            spec=shape_spec(arguments.shape, arguments.layers),
            tokens_per_row=arguments.tokens_per_row,
            slots=(None,),
            num_steps=arguments.steps,
            commit=False,
        )
    (run,) = found["runs"].values()
    placement = run["placement"]
    planned = placement["total_device_bytes"]
    limit = budget
    if not cuda:
        planned += placement["total_host_bytes"]
        limit += arguments.host_bytes
    return {
        "holds": peak.bytes <= limit,
        "limit_bytes": limit,
        "planned_bytes": planned,
        "peak_bytes": peak.bytes,
        "start_up_bytes": started,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if cuda else 0,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if cuda else 0,
        "planned_parts": placement["device_bytes"],
        "microbatch_rows": config.microbatch_rows,
        "step_seconds": run["step_seconds"],
        "plan": run["plan"],
    }


def make_config(arguments: argparse.Namespace, budget: int) -> TrainConfig:
    """The settings, with the largest microbatch that fits the budget."""
    config = TrainConfig(
        model="random",
        dataset="random",
        device=arguments.device,
        compute_dtype="bfloat16" if arguments.device == "cuda" else "float32",
        compile=arguments.compile,
        batch_rows=arguments.batch_rows,
        microbatch_rows=arguments.batch_rows,
        max_grad_norm=arguments.max_grad_norm,
        loss_chunk_tokens=512,
        device_bytes=budget,
        host_bytes=arguments.host_bytes,
        commit_every_steps=2**31,
    )
    spec = shape_spec(arguments.shape, arguments.layers)
    room = Box(device=arguments.device, device_bytes=0, host_bytes=0, volumes={"/": 2**63})
    return fit_microbatch(spec, config, longest_row_tokens=arguments.tokens_per_row, box=room)


def line(run: dict[str, Any]) -> str:
    """One budget, in GiB."""
    if "failed" in run:
        return f"{run['budget']}: failed ({run['failed']})"
    values = {key: run[f"{key}_bytes"] / GIB for key in (
        "planned", "peak", "start_up", "peak_allocated", "peak_reserved"
    )}  # fmt: skip
    shown = ", ".join(f"{key.replace('_', ' ')} {value:.2f}" for key, value in values.items())
    verdict = "holds" if run["holds"] else "MISSED"
    return f"{run['budget']}: {verdict}; GiB: {shown}; {run['step_seconds']:.2f} s/step"


if __name__ == "__main__":
    sys.exit(main())
