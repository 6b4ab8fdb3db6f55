"""How much faster is a packed step than a padded one? Runs of both, in turn, over the same rows.

State lies in host memory and nothing is exported, so that a step's time is its compute and update.
Printed are seconds and tokens of every step, and the ratios between padded and packed. On the CPU
the seconds that count are the processor's own, which other work on the machine changes little; give
it one thread. The exit status is 1 when packing saves less than `--share` of the time that the
computed tokens it saves would take.
"""

import argparse
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.inputs import add_run_arguments, box, finish, run_config
from bench.runs import follow
from headrace.engine import RunEvent, StopReason, TrainConfig

Steps = list[dict[str, Any]]


def main() -> int:
    """Prepare, run both as often as asked, compare, print; 0 when packing pays as it should."""
    arguments = parse_arguments()
    arguments.work_dir.mkdir(parents=True)
    config = make_config(arguments)
    found: dict[str, Steps] = {"on": [], "off": []}
    for turn in range(arguments.rounds):
        for packing in ("on", "off"):
            name = f"{packing}-{turn}"
            settings = replace(config, packing=packing)
            found[packing] += run_steps(settings, arguments, name)
    result = compare(found, "step_seconds" if config.device == "cuda" else "cpu_seconds")
    pays = result["time_saved"] >= arguments.share * result["computed_tokens_saved"]
    finish(
        {
            "pays": pays,
            **result,
            "steps": found,
            "numerics": config.numerics_key,
            "box": box(),
        },
        arguments.json,
    )
    return 0 if pays else 1


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_run_arguments(parser)
    parser.add_argument("--json", type=Path, help="also write the result there")
    parser.add_argument("--steps", type=int, default=4, help="of each run, the first not counted")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each, in turn")
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compute-dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--compile", choices=["off", "static", "dynamic"], default="off")
    parser.set_defaults(batch_rows=8, microbatch_rows=4, device_mib=6000, host_mib=4000)
    return parser.parse_args()


def make_config(arguments: argparse.Namespace) -> TrainConfig:
    """The settings of the runs, over data prepared under the work directory."""
    # Recomputing everything in both: what memory packing frees would keep activations instead.
    return run_config(
        arguments,
        {"dataset": arguments.train},
        state_tier="host",
        recompute="all",
        commit_every_steps=1000,
        **{name: getattr(arguments, name) for name in ("device", "compute_dtype", "compile")},
    )


def run_steps(config: TrainConfig, arguments: argparse.Namespace, name: str) -> Steps:
    """Step reports of a run, without its first."""
    steps: Steps = []
    started = time.process_time()

    def told(event: RunEvent) -> None:
        nonlocal started
        if event.type == "metrics":
            now = time.process_time()
            steps.append({**event.data, "cpu_seconds": now - started})
            started = now

    def poll() -> StopReason | None:
        return "pause" if len(steps) == arguments.steps else None

    follow(config, arguments.work_dir / name, told, poll)
    shutil.rmtree(arguments.work_dir / "volume" / name)
    return steps[1:]


def compare(found: dict[str, Steps], seconds: str) -> dict[str, Any]:
    """Sums over the steps, and the shares of padded time and tokens that packing saves."""
    sums = {
        packing: {
            name: sum(step[name] for step in steps)
            for name in ("step_seconds", "cpu_seconds", "num_tokens", "num_computed_tokens")
        }
        for packing, steps in found.items()
    }
    packed, padded = sums["on"], sums["off"]
    assert packed["num_tokens"] == padded["num_tokens"], "not the same rows"
    return {
        "packed": packed,
        "padded": padded,
        "padded_over_packed_seconds": padded[seconds] / packed[seconds],
        "padded_over_packed_tokens": padded["num_computed_tokens"] / packed["num_computed_tokens"],
        "time_saved": 1 - packed[seconds] / padded[seconds],
        "computed_tokens_saved": 1 - packed["num_computed_tokens"] / padded["num_computed_tokens"],
        "largest_relative_loss_difference": max(
            abs(one["loss"] / other["loss"] - 1)
            for one, other in zip(found["on"], found["off"], strict=True)
        ),
    }


if __name__ == "__main__":
    sys.exit(main())
