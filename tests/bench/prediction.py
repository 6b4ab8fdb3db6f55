"""Does a step take what the plan says, and is `auto` the best? Plans by measured rates, held to it.

Compute is measured right before each run is timed, since a box that is shared drifts by more than
a plan may be off.
"""

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from headrace.engine import (
    STRATEGIES,
    CannotFit,
    TrainConfig,
    bench_step,
    calibrate_compute,
    detect_box,
    make_plan,
    shape_spec,
)
from headrace.storage import VolumeConfig, calibrate_volume

MEDIAN_ERROR, WORST_ERROR, AUTO_SLACK = 0.10, 0.20, 0.05
MB = 10**6
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Runs to predict: a shape, its layers, a drive's rate in MB/s, rows and tokens of a step.

    `memory`: of the state, the share that host memory is given beside what every run needs.
    """

    name: str
    throttle: int
    rows: int
    tokens: int
    memory: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)
    shape: str = "tiny"
    layers: int = 8


CASES = (
    Case(name="slow drive, few tokens", throttle=60, rows=4, tokens=128),
    Case(name="slow drive, more tokens", throttle=60, rows=8, tokens=256),
    Case(name="fast drive, few tokens", throttle=250, rows=4, tokens=256),
    Case(name="fast drive, more tokens", throttle=250, rows=16, tokens=256),
    Case(name="memory for the state", throttle=60, rows=8, tokens=256, memory=3.0),
    Case(name="compact state", throttle=60, rows=8, tokens=256, settings={"state_format": "q8"}),
    Case(name="one slot", throttle=120, rows=8, tokens=256, settings={"num_slots": 1}),
    Case(name="five slots", throttle=120, rows=8, tokens=256, settings={"num_slots": 5}),
    Case(name="nothing recomputed", throttle=120, rows=8, tokens=256,
         settings={"recompute": "none"}),
    Case(name="clip by layer", throttle=120, rows=8, tokens=256,
         settings={"clip_mode": "per_layer"}),
)  # fmt: skip


def configure(case: Case, strategy: str, device: str) -> TrainConfig:
    """The run of a case under a strategy; commits are left to those whose state is on NVMe."""
    on_gpu = device == "cuda"
    return TrainConfig(
        model="",
        dataset="",
        device=device,  # type: ignore[arg-type]
        compute_dtype="bfloat16" if on_gpu else "float32",
        strategy=strategy,  # type: ignore[arg-type]
        batch_rows=case.rows,
        microbatch_rows=max(1, case.rows // 2),
        packing="off",
        loss_chunk_tokens=4096 if on_gpu else 256,
        max_grad_norm=1e9,
        **case.settings,
    )


def budgets(case: Case, config: TrainConfig, folder: VolumeConfig) -> TrainConfig:
    """Room for everything but the state; of the state, half on the device for those that split."""
    spec = shape_spec(case.shape, case.layers)
    box = detect_box(device=config.device, volumes=[folder])
    roomy = replace(config, strategy="auto", state_tier="nvme")
    plan = make_plan(spec, roomy, longest_row_tokens=case.tokens, box=box)
    state = sum(plan.basis.sizes.state_bytes)
    tiers = STRATEGIES[config.strategy].tiers
    host = 4 * state if "nvme" not in tiers or config.strategy == "zero_offload" else 0
    host += state // 2 if config.strategy == "zero_infinity" else 0  # its sums of gradients
    split = len(tiers) == 2 and "device" in tiers
    return replace(
        config,
        host_bytes=int(plan.total_host_bytes + host + case.memory * state + MIB),
        device_bytes=plan.total_device_bytes + (state // 2 if split else 4 * state),
    )


def measure(case: Case, strategy: str, volume: VolumeConfig, *, steps: int, device: str) -> Any:
    """Plan and time one run; the error is a share of what was measured. None if it cannot run."""
    spec = shape_spec(case.shape, case.layers)
    config = configure(case, strategy, device)
    try:
        config = budgets(case, config, volume)
        calibrate_compute(spec, config, [volume], microbatch_tokens=case.rows * case.tokens)
        found = bench_step(
            config,
            spec=spec,
            tokens_per_row=case.tokens,
            slots=[config.num_slots],
            volumes=[volume],
            num_steps=steps,
        )
    except (CannotFit, ValueError) as error:
        print(f"{case.name}, {strategy}: {error}", file=sys.stderr)
        return None
    (run,) = found["runs"].values()
    plan = run["placement"]
    return {
        "case": case.name,
        "strategy": strategy,
        "tiers": {tier: plan["tiers"].count(tier) for tier in set(plan["tiers"])},
        "bottleneck": plan["forecast"]["bottleneck"],
        "planned_seconds": run["planned_seconds"],
        "measured_seconds": run["step_seconds"],
        "all_seconds": run["all_step_seconds"],
        "error": run["planned_seconds"] / run["step_seconds"] - 1,
    }


def report(results: list[dict[str, Any]], device: str) -> dict[str, Any]:
    """All runs, and whether the promises held."""
    errors = sorted(abs(one["error"]) for one in results)
    behind = {}
    for name in dict.fromkeys(one["case"] for one in results):
        runs = {one["strategy"]: one["measured_seconds"] for one in results if one["case"] == name}
        if "auto" in runs and len(runs) > 1:
            # A strategy that was given memory which auto was not is no rival.
            rivals = [s for who, s in runs.items() if who in FAIR_RIVALS]
            behind[name] = runs["auto"] / min([runs["auto"], *rivals]) - 1
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "machine": platform.platform(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "median_error": median(errors),
        "worst_error": errors[-1],
        "auto_behind_the_best": behind,
        "holds": median(errors) <= MEDIAN_ERROR
        and errors[-1] <= WORST_ERROR
        and all(share <= AUTO_SLACK for share in behind.values()),
        "runs": results,
    }


FAIR_RIVALS = ("ratel", "memascend", "zero_infinity")  # with auto's own budgets


def lines(results: list[dict[str, Any]]) -> Iterator[str]:
    """A table for people."""
    for one in results:
        yield (
            f"{one['case']:24} {one['strategy']:14} {one['bottleneck']:8} "
            f"planned {one['planned_seconds']:8.3f} s  measured {one['measured_seconds']:8.3f} s  "
            f"{100 * one['error']:+6.1f} %"
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--volume", type=Path, help="a directory on the drive that is meant")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, default=5, help="timed steps a run, after one")
    parser.add_argument("--case", action="append", help="only those whose name begins like this")
    parser.add_argument("--strategy", action="append", help="only these; all unless given")
    parser.add_argument("--json", type=Path, help="write the result there too")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir=options.volume, prefix="prediction-") as scratch:
        for case in CASES:
            if options.case and not any(case.name.startswith(name) for name in options.case):
                continue
            drive = VolumeConfig(path=Path(scratch), throttle_bytes_per_second=case.throttle * MB)
            calibrate_volume(drive)
            for name in options.strategy or STRATEGIES:
                found = measure(case, name, drive, steps=options.steps, device=options.device)
                if found is not None:
                    results.append(found)
                    print(*lines([found]), file=sys.stderr, flush=True)
    found = report(results, options.device)
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    sys.exit(0 if found["holds"] else 1)


if __name__ == "__main__":
    main()
