"""Does a run stay within its budgets, and move the bytes that the formula says? In a process alone.

A fresh process imports the engine, notes its resident memory, then imports the model, trains a few
steps and exports, while a thread samples the memory every 20 ms. Printed are the peaks above that
base against `device_bytes + host_bytes`, and each step's payload per link against the formula.
The exit status is 1 when a budget is exceeded or a count is off by more than 2 %.
"""

import argparse
import json
import sys
from pathlib import Path

from bench.contest import run_apart
from bench.inputs import MIB, add_run_arguments, box, finish, run_config
from bench.runs import follow  # before the base is taken: what it imports is not the run's
from bench.traffic import compare_traffic
from bench.watch import Sampling, memory, reset_peak
from headrace.engine import RunEvent, TrainConfig, read_model_spec

SAMPLE_SECONDS = 0.02
TRAFFIC_TOLERANCE = 0.02
LIMIT_SECONDS = 24 * 3600


def main() -> int:
    """Prepare, measure in a fresh process, compare, print; 0 when every promise holds."""
    arguments = parse_arguments()
    if arguments.child is not None:
        return measure(arguments.child)
    arguments.work_dir.mkdir(parents=True)
    config = make_config(arguments)
    task = arguments.work_dir / "task.json"
    task.write_text(json.dumps(config.to_dict()))
    done = run_apart("bench.memory_budget", ["--child", str(task)], limit=LIMIT_SECONDS)
    if "failed" in done:
        return 2  # what went wrong it has said itself
    measured = done["result"]
    budget = arguments.device_mib + arguments.host_mib
    steps, plan = measured.pop("steps"), measured.pop("plan")
    traffic = compare_traffic(read_model_spec(arguments.model), plan, steps)
    fits = measured["peak_above_base_mib"] <= budget
    counts = all(row["largest_deviation"] <= TRAFFIC_TOLERANCE for row in traffic.values())
    finish(
        {
            "within_budget": fits,
            "counts_match": counts,
            "budget_mib": budget,
            **measured,
            "payload_bytes_per_step": traffic,
            "config": config.to_dict(),
            "box": box(),
        },
        arguments.json,
    )
    return 0 if fits and counts else 1


def parse_arguments() -> argparse.Namespace:
    """The command line; `--child` is this script's call of itself."""
    if sys.argv[1:2] == ["--child"]:
        return argparse.Namespace(child=Path(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__)
    add_run_arguments(parser)
    parser.add_argument("--json", type=Path, help="also write the result there")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--clip-way", choices=["serial", "speculative"], default="serial")
    parser.add_argument("--clip-mode", default="exact")
    parser.set_defaults(child=None)
    return parser.parse_args()


def make_config(arguments: argparse.Namespace) -> TrainConfig:
    """The settings of the run, over data prepared under the work directory."""
    return run_config(
        arguments,
        {"dataset": arguments.train},
        max_steps=arguments.steps,
        clip_way=arguments.clip_way,
        clip_mode=arguments.clip_mode,
    )


def measure(task: Path) -> int:
    """In the fresh process: run the task, print memory and step reports as JSON."""
    config = TrainConfig.from_dict(json.loads(task.read_bytes()))
    base = memory()["VmRSS"]
    reset_peak()
    sampler = Sampler()
    with Sampling(sampler.sample, every_seconds=SAMPLE_SECONDS):

        def told(event: RunEvent) -> None:
            if event.type == "phase":
                sampler.phase = event.message

        events = follow(config, task.parent / "run", told)
    steps = [event.data for event in events if event.type == "metrics"]
    (plan,) = (event.data for event in events if event.type == "plan")
    result = {
        "base_mib": base / MIB,
        "peak_above_base_mib": (memory()["VmHWM"] - base) / MIB,
        "sampled_peak_above_base_mib": {
            phase: (peak - base) / MIB for phase, peak in sampler.peaks.items()
        },
        "anonymous_and_file_mib_at_peak": sampler.split_at_peak,
        "planned_mib": {
            tier: {part: size / MIB for part, size in plan[tier].items()}
            for tier in ("device_bytes", "host_bytes")
        },
        "rss_above_base_mib_after_each_step": [(step["rss_bytes"] - base) / MIB for step in steps],
        "step_seconds": [step["step_seconds"] for step in steps],
        "steps": steps,
        "plan": plan,
    }
    print(json.dumps(result))
    return 0


class Sampler:
    """Peak resident bytes of each phase, as sampled; the phase is set from outside."""

    def __init__(self) -> None:
        self.phase = "starting"
        self.peaks: dict[str, int] = {}
        self.split_at_peak: dict[str, float] = {}

    def sample(self) -> None:
        """Look once."""
        now = memory()
        if now["VmRSS"] > max(self.peaks.values(), default=0):
            self.split_at_peak = {
                "anonymous": now["RssAnon"] / MIB,
                "file": (now["RssFile"] + now["RssShmem"]) / MIB,
            }
        self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), now["VmRSS"])


if __name__ == "__main__":
    sys.exit(main())
