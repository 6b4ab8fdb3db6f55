"""Does a step take what the plan says? Plans by measured rates, held against the steps themselves.

Every case is calibrated at the rate of its volume right before it is timed, since a box that is
shared drifts by more than a plan may be off.
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

from headrace.engine import TrainConfig, bench_step, calibrate_compute, shape_spec
from headrace.storage import VolumeConfig, calibrate_volume

MEDIAN_ERROR, WORST_ERROR = 0.10, 0.20
MB = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run to predict: a shape, its layers, a drive's rate in MB/s, rows and tokens of a step."""

    name: str
    layers: int
    throttle: int
    rows: int
    tokens: int
    settings: dict[str, Any] = field(default_factory=dict)
    shape: str = "tiny"


CASES = (
    Case(name="drive bound, serial", layers=6, throttle=60, rows=2, tokens=64,
         settings={"clip_way": "serial"}),
    Case(name="drive bound, per layer", layers=6, throttle=60, rows=2, tokens=64,
         settings={"clip_mode": "per_layer"}),
    Case(name="drive bound, two slots", layers=6, throttle=60, rows=2, tokens=64,
         settings={"clip_mode": "per_layer", "num_slots": 2}),
    Case(name="drive and compute alike", layers=6, throttle=120, rows=4, tokens=128,
         settings={"clip_mode": "per_layer"}),
    Case(name="drive and compute alike, serial", layers=6, throttle=120, rows=4, tokens=128,
         settings={"clip_way": "serial"}),
    Case(name="nothing recomputed", layers=6, throttle=120, rows=4, tokens=128,
         settings={"clip_mode": "per_layer", "recompute": "none"}),
    Case(name="compute bound", layers=6, throttle=400, rows=8, tokens=256,
         settings={"clip_mode": "per_layer"}),
    Case(name="in host memory", layers=6, throttle=400, rows=8, tokens=128,
         settings={"state_tier": "host"}),
    Case(name="one slot", layers=6, throttle=120, rows=4, tokens=128,
         settings={"clip_mode": "per_layer", "num_slots": 1}),
    Case(name="compact state", layers=6, throttle=60, rows=2, tokens=64,
         settings={"clip_mode": "per_layer", "state_format": "q8"}),
)  # fmt: skip


def measure(case: Case, folder: Path, *, steps: int, device: str) -> dict[str, Any]:
    """Plan and time one case; seconds of a step, and the error as a share of what was measured."""
    spec = shape_spec(case.shape, case.layers)
    on_gpu = device == "cuda"
    config = TrainConfig(
        model="",
        dataset="",
        device=device,  # type: ignore[arg-type]
        compute_dtype="bfloat16" if on_gpu else "float32",
        batch_rows=case.rows,
        microbatch_rows=max(1, case.rows // 2),
        loss_chunk_tokens=4096 if on_gpu else 256,
        device_bytes=2**31,
        host_bytes=2**30,
        **{"state_tier": "nvme", **case.settings},
    )
    volume = VolumeConfig(path=folder, throttle_bytes_per_second=case.throttle * MB)
    calibrate_volume(volume)
    calibrate_compute(spec, config, [volume], microbatch_tokens=case.rows * case.tokens)
    slots = config.num_slots
    found = bench_step(
        replace(config, num_slots=None),
        spec=spec,
        tokens_per_row=case.tokens,
        slots=[slots],
        volumes=[volume],
        num_steps=steps,
    )
    (run,) = found["runs"].values()
    forecast = run["placement"]["forecast"]
    return {
        "case": case.name,
        "bottleneck": forecast["bottleneck"],
        "planned_seconds": run["planned_seconds"],
        "measured_seconds": run["step_seconds"],
        "all_seconds": run["all_step_seconds"],
        "error": run["planned_seconds"] / run["step_seconds"] - 1,
        "planned_phases": {one["phase"]: one["seconds"] for one in forecast["step"]["phases"]},
        "measured_passes": run["passes"],
    }


def report(results: list[dict[str, Any]], device: str) -> dict[str, Any]:
    """All cases, and whether the promise held."""
    errors = sorted(abs(one["error"]) for one in results)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "machine": platform.platform(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "median_error": median(errors),
        "worst_error": errors[-1],
        "holds": median(errors) <= MEDIAN_ERROR and errors[-1] <= WORST_ERROR,
        "cases": results,
    }


def lines(results: list[dict[str, Any]]) -> Iterator[str]:
    """A table for people."""
    for one in results:
        yield (
            f"{one['case']:34} {one['bottleneck']:8} planned {one['planned_seconds']:8.3f} s  "
            f"measured {one['measured_seconds']:8.3f} s  {100 * one['error']:+6.1f} %"
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--volume", type=Path, help="a directory on the drive that is meant")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, default=5, help="timed steps a case, after one")
    parser.add_argument("--case", action="append", help="only those whose name begins like this")
    parser.add_argument("--json", type=Path, help="write the result there too")
    options = parser.parse_args()
    wanted = [
        case
        for case in CASES
        if not options.case or any(case.name.startswith(name) for name in options.case)
    ]
    results = []
    with tempfile.TemporaryDirectory(dir=options.volume, prefix="prediction-") as scratch:
        for case in wanted:
            results.append(measure(case, Path(scratch), steps=options.steps, device=options.device))
            print(*lines(results[-1:]), file=sys.stderr, flush=True)
    found = report(results, options.device)
    text = json.dumps(found, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    sys.exit(0 if found["holds"] else 1)


if __name__ == "__main__":
    main()
