"""Losses of the product laid over those of plain PyTorch with an fp32 master, on real text.

Both start from the same random weights and see the same rows in bf16. Plain PyTorch runs again
with the rows of every step dealt differently into microbatches: how far those losses are from the
first ones is the spread, what rounding alone does. The product keeps its promise when it is at
most twice as far. Two controls: autocast over fp32 weights, and a master rounded to the nearest
bf16 after every update, which is how not to do it.

    python -m bench.overlay --device cuda --rows rows.jsonl --tokenizer DIR --work-dir NEW --json F
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any, get_args

from bench.contest import run_apart
from bench.inputs import box, finish
from bench.overlay_reference import Reference, train_plain
from bench.runs import follow
from bench.texts import add_text_arguments, text_config
from headrace.engine import TrainConfig
from headrace.engine.config import StateFormat

WINDOW_STEPS = 20
TOLERANCE = 2.0  # spreads
CONFIG = "config.json"  # in the work directory, for those who train in processes of their own


def main() -> int:
    """Train everyone, compare, print; 0 when `exact` is within the tolerance."""
    arguments = parse_arguments()
    if arguments.child:
        config = TrainConfig.from_dict(json.loads((arguments.work_dir / CONFIG).read_text()))
        print(json.dumps(dict(contenders(config, arguments))[arguments.child]()))
        return 0
    arguments.work_dir.mkdir(parents=True)
    config = make_config(arguments)
    (arguments.work_dir / CONFIG).write_text(json.dumps(config.to_dict()))
    losses: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    for name, values, took in train_all(config, arguments):
        losses[name], seconds[name] = values, took
        print(f"{name}: loss {values[0]:.4f} to {values[-1]:.4f} in {took:.0f} s",
              file=sys.stderr, flush=True)  # fmt: skip
        if arguments.json:  # what is known so far, should the rest be cut off
            arguments.json.write_text(json.dumps({"losses": losses, "seconds": seconds}))
    result = compare(losses)
    finish(
        {
            **result,
            "tolerance": TOLERANCE,
            "shape": arguments.shape,
            "layers": arguments.layers,
            "config": config.to_dict(),
            "losses": losses,
            "seconds": seconds,
            "box": {**box(), "device": arguments.device},
        },
        arguments.json,
    )
    print(report(result), file=sys.stderr)
    return 0 if result["holds"] else 1


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_text_arguments(parser)
    parser.set_defaults(
        shape="smollm2-135m", steps=200, tokens_per_row=512, batch_rows=16, learning_rate=1e-4
    )
    parser.add_argument("--microbatch-rows", type=int, default=4)
    parser.add_argument("--permutations", type=int, default=2, help="reference runs for the spread")
    parser.add_argument("--compile", default="off", help="of the product's layers")
    formats = get_args(StateFormat)
    parser.add_argument("--state-format", action="append", choices=formats, help="repeatable; all")
    parser.add_argument("--jobs", type=int, default=1, help="so many train at once")
    parser.add_argument("--seconds", type=float, default=600, help="limit of each of several jobs")
    parser.add_argument("--child", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.state_format = arguments.state_format or list(formats)
    return arguments


def train_all(
    config: TrainConfig, arguments: argparse.Namespace
) -> Iterator[tuple[str, list[float], float]]:
    """Name, losses and seconds of everyone in turn; with more than one job in a process each."""

    def here(train: Any) -> tuple[list[float], float]:
        started = perf_counter()
        return train(), perf_counter() - started

    def apart(name: str) -> tuple[list[float], float]:
        row = run_apart("bench.overlay", [*sys.argv[1:], "--child", name], limit=arguments.seconds)
        if "failed" in row:
            raise SystemExit(f"{name}: {row['failed']}: {row['said']}")
        return row["result"], row["wall_seconds"]

    everyone = dict(contenders(config, arguments))
    if arguments.jobs == 1:
        for name, train in everyone.items():
            yield name, *here(train)
        return
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for name, found in zip(everyone, pool.map(apart, everyone), strict=True):
            yield name, *found


def make_config(arguments: argparse.Namespace) -> TrainConfig:
    """The product's settings, over a random model and rows of real text in the work directory."""
    return text_config(
        arguments,
        None,
        compute_dtype="bfloat16",
        microbatch_rows=arguments.microbatch_rows,
        loss_chunk_tokens=2048,
        compile=arguments.compile,
        host_bytes=16 * 2**30,
    )


def contenders(config: TrainConfig, arguments: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Names and what trains them, returning the loss of every step."""
    plain = {
        "reference": Reference(),
        **{f"permuted-{i}": Reference(permutation=i + 1) for i in range(arguments.permutations)},
        "autocast": Reference(autocast=True),
        "nearest-bf16-master": Reference(round_master=True),
    }
    for name, reference in plain.items():
        yield name, lambda reference=reference: train_plain(config, reference)
    for one in arguments.state_format:
        yield f"headrace-{one}", lambda one=one: train_product(config, one, arguments.work_dir)


def train_product(config: TrainConfig, state_format: str, work_dir: Path) -> list[float]:
    """Loss of every step of a run of the product."""
    own = TrainConfig.from_dict({**config.to_dict(), "state_format": state_format})
    events = follow(own, work_dir / state_format)
    return [event.data["loss"] for event in events if event.type == "metrics"]


def compare(losses: dict[str, Sequence[float]] | dict[str, list[float]]) -> dict[str, Any]:
    """Mean |loss - reference| of each by windows of steps, and in spreads over the whole run."""
    reference = losses["reference"]
    gaps = {
        name: [abs(a - b) for a, b in zip(values, reference, strict=True)]
        for name, values in losses.items()
        if name != "reference"
    }
    permuted = [gaps.pop(name) for name in list(gaps) if name.startswith("permuted")]
    spread = [mean(each) for each in zip(*permuted, strict=True)]
    windows = []
    for start in range(0, len(reference), WINDOW_STEPS):
        span = slice(start, start + WINDOW_STEPS)
        windows.append(
            {
                "steps": [start + 1, min(start + WINDOW_STEPS, len(reference))],
                "loss": mean(reference[span]),
                "spread": mean(spread[span]),
                "gap": {name: mean(values[span]) for name, values in gaps.items()},
            }
        )
    whole = mean(spread)
    in_spreads = {name: mean(values) / whole for name, values in gaps.items()}
    return {
        "holds": in_spreads.get("headrace-exact", 0.0) <= TOLERANCE,
        "spread": whole,
        "gap_in_spreads": in_spreads,
        "windows": windows,
    }


def report(result: dict[str, Any]) -> str:
    """The windows as lines: |Δloss| over the spread of the window."""
    names = list(result["gap_in_spreads"])
    lines = ["steps      loss    spread    " + "  ".join(names)]
    for window in result["windows"]:
        first, last = window["steps"]
        ratios = (
            f"{window['gap'][name] / max(window['spread'], 1e-12):{len(name)}.2f}" for name in names
        )
        lines.append(f"{first:4}-{last:<4}  {window['loss']:.4f}  {window['spread']:.1e}  "
                     + "  ".join(ratios))  # fmt: skip
    whole = (f"{result['gap_in_spreads'][name]:{len(name)}.2f}" for name in names)
    lines.append(f"all                {result['spread']:.1e}  " + "  ".join(whole))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
