"""Whole training steps on one GPU: the product beside its peers, in one run, as a ratio.

Llama-8B layer shape and larger, sequences of 1024 random tokens, full fine-tuning with the loss,
fp32 master weights and AdamW on both sides. Every contender of a case runs in a process of its
own with a time limit and becomes one JSON line of --results; one that is there already is left
alone, so that a run can go on where it stopped.

    python -m bench.gpu_step --results gpu_step.jsonl --case 12x16k --who headrace --who pytorch
    python -m bench.gpu_step --results gpu_step.jsonl --table
"""

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import transformers

from bench.contest import Clock, add_row, read_rows, run_apart, tell
from bench.gpu_cases import CASES, HOST_BYTES, PEERS, PRODUCT, TABLE, Case
from bench.gpu_peers import measure_deepspeed, measure_pytorch
from bench.gpu_table import summary, table
from bench.links import copy_limit_seconds, loaded_drive, measure_copies
from bench.watch import PeakMemory, resident, used_on_gpu
from headrace.engine import ModelSpec, TrainConfig, bench_step, method_spec, shape_spec
from headrace.engine.measure_box import measure_box
from headrace.engine.rates import VolumeRates
from headrace.storage import VolumeConfig
from headrace.storage.load import LoadKind

GIB = 2**30
CHUNK_TOKENS = 4096
# Bytes a parameter that must cross the link when all state is in host memory: the weights for the
# forward pass and the state for the update up, the state down.
UP_BYTES, DOWN_BYTES = 14, 12
# A file beside the state: a smaller one may be moved more quickly, of a larger one beside 48 GB of
# state a drive of 64 GiB keeps too little in reserve.
DRIVE_BYTES = {"cpu": (2**27, 2**28), "cuda": (4 * GIB, 4 * GIB)}  # and moved, each time
LOOK_SECONDS = 0.02


def main() -> int:
    """Run what is not in the results yet; print each as it is done. --table prints them all."""
    arguments = _arguments()
    if arguments.child:
        case, who = arguments.child
        print(json.dumps(measure(CASES[case], who, arguments)))
        return 0
    if arguments.table:
        print(table(arguments.results))
        return 0
    done = {(row["case"], row["who"]) for row in read_rows(arguments.results)}
    clock = Clock(arguments.seconds)
    for case in arguments.case or TABLE:
        for who in arguments.who or contenders(CASES[case]):
            if (case, who) in done:
                continue
            if clock.left < arguments.least_seconds:
                left = f"{clock.left:.0f} s are too few"
                print(f"{case} {who}: left for the next run, {left}", flush=True)
                continue
            row = run_contender(case, who, arguments, limit=min(clock.left, CASES[case].seconds))
            add_row(arguments.results, row)
            print(summary(row), flush=True)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--case", action="append", choices=list(CASES), help="repeatable; all")
    everyone = [*PRODUCT, *PEERS]
    parser.add_argument("--who", action="append", choices=everyone, help="repeatable; the case's")
    parser.add_argument("--table", action="store_true", help="print the results and stop")
    parser.add_argument("--steps", type=int, help="timed steps of each; the case's")
    parser.add_argument("--microbatch-rows", type=int, help="the product's; the case's")
    parser.add_argument("--peer-microbatch-rows", type=int, default=4, help="PyTorch's")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the product"
    )
    parser.add_argument("--volume", type=Path, help="drive for state on NVMe; the temporary folder")
    parser.add_argument("--seconds", type=float, default=1e9, help="limit of all together")
    parser.add_argument("--least-seconds", type=float, default=30, help="what a contender needs")
    parser.add_argument("--child", nargs=2, metavar=("CASE", "WHO"), help=argparse.SUPPRESS)
    return parser.parse_args()


def contenders(case: Case) -> list[str]:
    """Who runs a case unless others are named."""
    return [*case.peers, *case.who]


def run_contender(
    case: str, who: str, arguments: argparse.Namespace, *, limit: float
) -> dict[str, Any]:
    """One contender in a fresh process; its row of the results."""
    print(f"{case} {who}: at most {limit:.0f} s", file=sys.stderr, flush=True)
    given = [argument for argument in sys.argv[1:] if argument != "--table"]
    done = run_apart("bench.gpu_step", [*given, "--child", case, who], limit=limit)
    about = {"settings": asdict(CASES[case]), "set": arguments.set}
    return {"case": case, "who": who, **about, **done}


def _box(device: str) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    return {
        "gpu": gpu,
        "cpus": os.cpu_count(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def measure(case: Case, who: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Time one contender: seconds a step (median), model TFLOPS by 6 N T / time, peak memory.

    `device_used_gib` is the driver's count above that before CUDA was started, `host_peak_gib`
    resident memory, pinned too, above that after the imports.
    """
    steps = arguments.steps or case.steps
    on_gpu = case.device == "cuda"
    with ExitStack() as stack:
        host = stack.enter_context(PeakMemory(resident, every_seconds=LOOK_SECONDS))
        if on_gpu:
            device = stack.enter_context(PeakMemory(used_on_gpu(), every_seconds=LOOK_SECONDS))
        if who in PRODUCT:
            result = _measure_product(case, PRODUCT[who], arguments, steps)
        elif who == "deepspeed":
            result = measure_deepspeed(case, steps)
        else:
            result = measure_pytorch(case, who, steps, arguments.peer_microbatch_rows)
    # Of a frozen weight there is no gradient: 4 operations a token instead of 6.
    trained = result.get("num_trained_params", result["num_params"])
    flops = (4 * result["num_params"] + 2 * trained) * case.tokens / result["step_seconds"]
    reserved = torch.cuda.max_memory_reserved() if on_gpu else 0
    return {
        **result,
        "box": _box(case.device),
        "tflops": flops / 1e12,
        "tokens_per_second": case.tokens / result["step_seconds"],
        "peak_gib": torch.cuda.max_memory_allocated() / GIB if on_gpu else 0.0,
        "peak_reserved_gib": reserved / GIB,
        "device_used_gib": device.bytes / GIB if on_gpu else 0.0,
        "host_peak_gib": host.bytes / GIB,
    }


def product_config(case: Case, settings: dict[str, Any], arguments: argparse.Namespace) -> Any:
    """The product's settings for a case, and those that --set gives on top."""
    values = {
        "device": case.device,
        "compute_dtype": "bfloat16",
        "compile": "static",
        "host_bytes": HOST_BYTES,
        "loss_chunk_tokens": CHUNK_TOKENS,
        "commit_every_steps": 1 if case.commit else 2**31,
        "batch_rows": case.rows,
        "microbatch_rows": arguments.microbatch_rows or case.microbatch_rows,
        **case.settings,
        **settings,
    }
    for text in arguments.set:
        name, _, value = text.partition("=")
        try:
            values[name] = json.loads(value)
        except json.JSONDecodeError:
            values[name] = value
    return TrainConfig(model="random", dataset="random", **values)


def case_spec(case: Case, config: TrainConfig) -> ModelSpec:
    """What the product trains in a case."""
    return method_spec(shape_spec(case.shape, case.layers), config)


def _measure_product(
    case: Case, settings: dict[str, Any], arguments: argparse.Namespace, steps: int
) -> dict[str, Any]:
    config = product_config(case, settings, arguments)
    rates: dict[str, Any] = {}
    # Links and processor as they are here, and the drive where it is used; layers as usual.
    box_rates = measure_box(case.device) if case.device == "cuda" else None
    if case.limit == "pcie":
        rates = measure_copies()
        torch.cuda.empty_cache()
    span, moved = DRIVE_BYTES[case.device]
    with ExitStack() as stack:
        rate: Callable[[LoadKind], float] | None = None
        if case.on_drive:
            drive = loaded_drive(arguments.volume, file_bytes=span, num_bytes=moved)
            rate = stack.enter_context(drive)
            speeds = VolumeRates(read=rate("read"), write=rate("write"), mixed=rate("mixed"))
            box_rates = box_rates and replace(box_rates, default_volume=speeds)
        mixed: list[float] = []

        @contextmanager
        def around(step: int) -> Iterator[None]:
            """What the drive gives just before each step that counts."""
            if step and rate and case.limit == "drive":
                mixed.append(rate("mixed"))
            yield

        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="headrace-gpu-step-", dir=arguments.volume)
        )
        found = bench_step(
            config,
            spec=case_spec(case, config),
            volumes=[VolumeConfig(path=Path(folder))],
            tokens_per_row=case.tokens_per_row,
            slots=(config.num_slots,),
            num_steps=steps,
            commit=case.commit,
            tell=tell,
            rates=box_rates,
            around=around,
        )
        if rate and case.limit == "drive":
            rates["mixed"] = [*mixed, rate("mixed")]
    (run,) = found["runs"].values()
    result = {
        "num_params": found["num_params"],
        "num_trained_params": found["num_trained_params"],
        "pinned_gib": run["placement"]["total_host_bytes"] / GIB,
        "microbatch_rows": config.microbatch_rows,
        **{key: run[key] for key in (
            "start_seconds", "step_seconds", "planned_seconds", "all_step_seconds",
            "commit_seconds", "warm_seconds", "ways", "plan", "placement", "link_bytes",
            "imported_bytes", "written_bytes", "loss", "passes", "stall_read_seconds",
            "host_optimizer",
        )},
        "rates": box_rates and box_rates.to_dict(),
    }  # fmt: skip
    if case.limit:
        result["limit"] = limit_of(case, result, rates)
    return result


def limit_of(case: Case, result: dict[str, Any], rates: dict[str, Any]) -> dict[str, Any]:
    """What the links alone would take for a step, in seconds, and the step's ratio to it.

    `needed` counts the bytes that any way must move, `moved` those that the run did move. A drive
    is measured before and after each step, and a step is held to the mean of both: the ratio is
    the middle one of all steps.
    """
    links, steps = result["link_bytes"], [result["step_seconds"]]
    if case.limit == "pcie":
        up, down = (each * result["num_params"] for each in (UP_BYTES, DOWN_BYTES))
        needed = [copy_limit_seconds(up, down, rates)]
        moved = [copy_limit_seconds(links["h2d"], links["d2h"], rates)]
    else:
        steps = [each + result["commit_seconds"] for each in result["all_step_seconds"][1:]]
        mixed = [mean(pair) for pair in pairwise(rates["mixed"])]
        needed = [(UP_BYTES + DOWN_BYTES) * result["num_params"] / each for each in mixed]
        moved = [(links["nvme_read"] + links["nvme_write"]) / each for each in mixed]
    return {
        "rates": rates,
        "needed_seconds": median(needed),
        "moved_seconds": median(moved),
        "ratio_to_needed": median(a / b for a, b in zip(needed, steps, strict=True)),
        "ratio_to_moved": median(a / b for a, b in zip(moved, steps, strict=True)),
    }


if __name__ == "__main__":
    sys.exit(main())
