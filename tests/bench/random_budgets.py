"""Does a run that was found to fit ever run out of memory? Random runs within random budgets.

In one fresh process, whose allocator is set as the worker's is, runs of random shape, settings and
budgets follow each other. What the plan refuses is counted and not run. Of each other one the peak
of resident memory above that after the imports is at most the plan's sum and 100 MiB (on a GPU:
what torch reserves is at most what is planned on the device beside CUDA's own start-up), and host
memory is accounted for.
"""

import argparse
import gc
import json
import os
import random
import sys
import tempfile
import traceback
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from bench.contest import Clock, run_apart
from bench.inputs import box
from bench.watch import memory, reset_peak
from headrace.engine import (
    STRATEGIES,
    CannotFit,
    ModelSpec,
    StrategyConflict,
    TrainConfig,
    bench_step,
    detect_box,
    make_plan,
    settle_microbatch,
    shape_spec,
)
from headrace.storage import VolumeConfig

MIB = 2**20
SLACK_BYTES = 100 * MIB  # above the plan, of resident memory
LEAST_SHARE, MOST_SHARE = 0.95, 1.00  # of planned host bytes, carved
RESULTS = Path(__file__).parent / "results"
# As service/child.py sets it for the worker.
ALLOCATOR = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": str(MIB),
             "MALLOC_TRIM_THRESHOLD_": str(MIB)}  # fmt: skip
NUM_RUNS = {"cpu": 100, "cuda": 20}
MINUTES = {"cpu": 12.0, "cuda": 2.0}
Row = dict[str, Any]


def draw(chance: random.Random, device: str) -> tuple[ModelSpec, TrainConfig, int]:
    """A model, a run with budgets between too little and too much, and tokens of a row."""
    on_gpu = device == "cuda"
    shape, layers = ("smollm2-135m", 30) if on_gpu else ("tiny", chance.randint(2, 6))
    rows = chance.choice([2, 4, 8])
    tokens = chance.choice([256, 512, 1024] if on_gpu else [32, 64, 128, 256])
    names = ["auto"] * len(STRATEGIES) + list(STRATEGIES)
    config = TrainConfig(
        model="",
        dataset="",
        device=device,  # type: ignore[arg-type]
        compute_dtype="bfloat16" if on_gpu else "float32",
        batch_rows=rows,
        microbatch_rows=chance.randint(1, rows),
        packing=chance.choice(["on", "off"]),
        loss_chunk_tokens=1024 if on_gpu else chance.choice([64, 256]),
        **draw_clipping(chance),
        state_format=chance.choice(["exact", "exact", "q8", "sr_bf16", "sr_q8"]),
        strategy=chance.choice(names),  # type: ignore[arg-type]
        commit_every_steps=chance.choice([1, 1, 3]),
    )
    return shape_spec(shape, layers), config, tokens


def draw_clipping(chance: random.Random) -> dict[str, Any]:
    """A clip mode and a norm that clips every step or none; none goes with no norm."""
    mode, norm = chance.choice(["exact", "per_layer", "lagged", "none"]), chance.choice([1e-3, 1e9])
    return {"clip_mode": mode} | ({} if mode == "none" else {"max_grad_norm": norm})


def with_budgets(
    chance: random.Random, spec: ModelSpec, config: TrainConfig, tokens: int, folder: VolumeConfig
) -> TrainConfig:
    """Budgets from a little below what the least run takes to a little above the largest."""
    where = detect_box(device=config.device, volumes=[folder])
    free = replace(config, strategy="auto", clip_way="auto")

    def planned(**changes: Any) -> Any:
        run = settle_microbatch(replace(free, **changes), tokens)
        return make_plan(spec, run, longest_row_tokens=tokens, box=where)

    least = planned(state_tier="nvme", recompute="all", num_slots=2)
    most = planned(strategy="resident", recompute="none")
    state = sum(least.basis.sizes.state_bytes)
    device = chance.uniform(0.95 * least.total_device_bytes, 1.05 * most.total_device_bytes)
    host = chance.uniform(0.9 * least.total_host_bytes, least.total_host_bytes + 2.2 * state)
    return replace(config, device_bytes=int(device), host_bytes=int(host))


def run_one(chance: random.Random, device: str, folder: VolumeConfig, base: int) -> Row:
    """Draw a run and make it: what it took beside what was planned, or why it was refused."""
    spec, config, tokens = draw(chance, device)
    config = with_budgets(chance, spec, config, tokens, folder)
    row: Row = {
        "layers": spec.num_layers,
        "tokens": tokens,
        **{name: getattr(config, name) for name in (
            "strategy", "batch_rows", "microbatch_rows", "packing", "clip_mode", "state_format",
            "max_grad_norm", "commit_every_steps", "device_bytes", "host_bytes")},
    }  # fmt: skip
    gc.collect()
    reset_peak()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        found = bench_step(
            config,
            spec=spec,
            tokens_per_row=tokens,
            slots=[config.num_slots],
            volumes=[folder],
            num_steps=2,
            look=lambda work: {"left_in_arena": work.arena.free_bytes},
        )
    except (CannotFit, StrategyConflict) as error:
        return {**row, "refused": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {**row, "failed": f"{type(error).__name__}: {error}", "holds": False}
    (run,) = found["runs"].values()
    return row | judge(run["placement"], run["left_in_arena"], device, base)


def judge(plan: Row, left_in_arena: int, device: str, base: int) -> Row:
    """What a run took, and whether that is what it was to take."""
    host = plan["total_host_bytes"]
    planned = plan["total_device_bytes"] + host
    share = (host - left_in_arena) / host if host else 1.0
    peak = memory()["VmHWM"] - base
    holds = peak <= planned + SLACK_BYTES
    reserved = reservable = None
    if device == "cuda":
        reserved = torch.cuda.max_memory_reserved()
        # CUDA's own start-up is planned too, and nothing that torch reserves.
        reservable = plan["total_device_bytes"] - plan["device_bytes"]["runtime"]
        holds = reserved <= reservable
    return {
        "tiers": {tier: plan["tiers"].count(tier) for tier in sorted(set(plan["tiers"]))},
        "planned_bytes": planned,
        "planned_device_bytes": plan["total_device_bytes"],
        "peak_above_import_bytes": peak,
        "reserved_bytes": reserved,
        "reservable_bytes": reservable,
        "host_share": share,
        "holds": holds and LEAST_SHARE <= share <= MOST_SHARE,
    }


def child(options: argparse.Namespace) -> None:
    """In the fresh process: the runs, and their rows as one line of JSON."""
    chance = random.Random(options.seed)
    if options.device == "cuda":
        torch.zeros(1, device="cuda")
    base = memory()["VmRSS"]
    clock = Clock(60 * options.minutes)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(dir=options.volume, prefix="budgets-") as scratch:
        folder = VolumeConfig(path=Path(scratch))
        while sum("refused" not in row for row in rows) < options.runs and clock.left > 0:
            rows.append(run_one(chance, options.device, folder, base))
            print(line(len(rows), rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps(rows))


def line(number: int, row: Row) -> str:
    """One run for people."""
    name = f"{number:3} {row['strategy']:14} {row['state_format']:8}"
    if "refused" in row:
        return f"{name} refused: {row['refused'][:90]}"
    if "failed" in row:
        return f"{name} FAILED: {row['failed'][:200]}"
    taken, planned = taken_and_planned(row)
    verdict = "" if row["holds"] else "  MISSED"
    return (
        f"{name} {taken / MIB:7.0f} MiB of {planned / MIB:7.0f} planned, host "
        f"{row['host_share']:.3f}{verdict}"
    )


def taken_and_planned(row: Row) -> tuple[int, int]:
    """Bytes that a run is judged by: on a GPU what torch reserved, on a CPU what was resident."""
    if row["reservable_bytes"] is not None:
        return row["reserved_bytes"], row["reservable_bytes"]
    return row["peak_above_import_bytes"], row["planned_bytes"]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--volume", type=Path, help="a directory on the drive that is meant")
    parser.add_argument("--runs", type=int, help="that are not refused; 100, on a GPU 20")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="no run begins after that")
    parser.add_argument("--json", type=Path, help="the result's file, in place of the dated one")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.runs = options.runs or NUM_RUNS[options.device]
    options.minutes = options.minutes or MINUTES[options.device]
    return options


def main() -> int:
    """Run all in a process of their own; 0 when each kept to its plan."""
    options = parse_arguments()
    if options.child:
        child(options)
        return 0
    os.environ.update(ALLOCATOR)
    limit = 60 * options.minutes + 120
    done = run_apart("bench.random_budgets", [*sys.argv[1:], "--child"], limit=limit)
    rows = done.get("result", [])
    ran = [row for row in rows if "refused" not in row]
    judged = [taken_and_planned(row) for row in ran if "failed" not in row]
    over = [taken - planned for taken, planned in judged]
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": options.device,
        "seed": options.seed,
        "num_runs": len(ran),
        "num_refused": len(rows) - len(ran),
        "num_failed": sum("failed" in row for row in ran),
        "worst_above_plan_bytes": max(over, default=None),
        "holds": len(ran) == options.runs and all(row["holds"] for row in ran),
        "failed": done.get("failed"),
        "box": box(),
        "runs": rows,
    }
    date = datetime.now(UTC).date().isoformat()
    path = options.json or RESULTS / f"{date}-random-budgets-{options.device}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(
        f"{len(ran)} runs, {found['num_refused']} refused, {found['num_failed']} failed, at most "
        f"{max(over, default=0) / MIB:.0f} MiB above the plan: "
        f"{'all held' if found['holds'] else 'NOT ALL HELD'}; written to {path}"
    )
    return 0 if found["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
