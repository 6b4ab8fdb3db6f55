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
import resource
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import torch
import transformers

from bench.gpu_cases import CASES, HOST_BYTES, PEERS, PRODUCT, TABLE, Case
from bench.gpu_peers import measure_deepspeed, measure_pytorch
from bench.gpu_table import summary, table
from bench.links import copy_limit_seconds, measure_copies, measure_drive
from headrace.engine import TrainConfig, bench_step, shape_spec
from headrace.storage import VolumeConfig

CHUNK_TOKENS = 4096
# Bytes a parameter that must cross the link when all state is in host memory: the weights for the
# forward pass and the state for the update up, the state down.
UP_BYTES, DOWN_BYTES = 14, 12
WORDS_OF_AN_ERROR = 1500


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
    done = {(row["case"], row["who"]) for row in read_results(arguments.results)}
    started = monotonic()
    for case in arguments.case or TABLE:
        for who in arguments.who or contenders(CASES[case]):
            left = arguments.budget_seconds - (monotonic() - started)
            if (case, who) in done:
                continue
            if left < arguments.least_seconds:
                print(f"{case} {who}: left for the next run, {left:.0f} s are too few", flush=True)
                continue
            row = run_contender(case, who, arguments, limit=min(left, CASES[case].seconds))
            arguments.results.parent.mkdir(parents=True, exist_ok=True)
            with arguments.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
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
    parser.add_argument("--budget-seconds", type=float, default=1e9, help="start no more after")
    parser.add_argument("--least-seconds", type=float, default=30, help="what a contender needs")
    parser.add_argument("--child", nargs=2, metavar=("CASE", "WHO"), help=argparse.SUPPRESS)
    return parser.parse_args()


def contenders(case: Case) -> list[str]:
    """Who runs a case unless others are named."""
    return [*case.peers, "headrace", "headrace-clipping"]


def read_results(path: Path) -> list[dict[str, Any]]:
    """The rows of a results file that did not fail; none when it does not exist."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in rows if "failed" not in row]


def run_contender(
    case: str, who: str, arguments: argparse.Namespace, *, limit: float
) -> dict[str, Any]:
    """One contender in a fresh process, so that none inherits memory; its row of the results."""
    given = [argument for argument in sys.argv[1:] if argument != "--table"]
    command = [sys.executable, "-m", "bench.gpu_step", *given, "--child", case, who]
    started = monotonic()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command, stdout=output, stderr=errors, start_new_session=True, env=_child_environment()
        )
        try:
            status: int | str = child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            status = f"no result within {limit:.0f} s"
        output.seek(0)
        errors.seek(0)
        last = output.read().decode().strip().splitlines()[-1:]
        said = errors.read().decode(errors="replace").strip()[-WORDS_OF_AN_ERROR:]
    row = {
        "case": case,
        "who": who,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_seconds": round(monotonic() - started, 1),
        "settings": asdict(CASES[case]),
        "set": arguments.set,
    }
    if status == 0 and last:
        return {**row, "result": json.loads(last[0])}
    return {**row, "failed": str(status), "said": said}


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
    """Time one contender: seconds a step (median), model TFLOPS by 6 N T / time, peak memory."""
    steps = arguments.steps or case.steps
    on_gpu = case.device == "cuda"
    before = _device_used() if on_gpu else 0
    if who in PRODUCT:
        result = _measure_product(case, PRODUCT[who], arguments, steps)
    elif who == "deepspeed":
        result = measure_deepspeed(case, steps)
    else:
        result = measure_pytorch(case, who, steps, arguments.peer_microbatch_rows)
    flops = 6 * result["num_params"] * case.tokens / result["step_seconds"]
    reserved = torch.cuda.max_memory_reserved() if on_gpu else 0
    return {
        **result,
        "box": _box(case.device),
        "tflops": flops / 1e12,
        "tokens_per_second": case.tokens / result["step_seconds"],
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0,
        "peak_reserved_gib": reserved / 2**30,
        "device_used_gib": (_device_used() - before) / 2**30 if on_gpu else 0.0,
        "host_peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def _device_used() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


def _child_environment() -> dict[str, str]:
    """This process's, and where `bench` is to be found, however it was found here."""
    known = os.environ.get("PYTHONPATH")
    tests = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (tests, known)))}


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


def _measure_product(
    case: Case, settings: dict[str, Any], arguments: argparse.Namespace, steps: int
) -> dict[str, Any]:
    config = product_config(case, settings, arguments)
    rates: dict[str, Any] = {}
    drive_bytes = 4 * 2**30 if case.device == "cuda" else 2**28
    if case.limit == "pcie":
        rates = measure_copies()
        torch.cuda.empty_cache()
    elif case.limit == "drive":
        rates = {"mixed": [measure_drive(arguments.volume, num_bytes=drive_bytes)]}
    with tempfile.TemporaryDirectory(prefix="headrace-gpu-step-", dir=arguments.volume) as folder:
        found = bench_step(
            config,
            spec=shape_spec(case.shape, case.layers),
            volumes=[VolumeConfig(path=Path(folder))],
            tokens_per_row=case.tokens_per_row,
            slots=(config.num_slots,),
            num_steps=steps,
            commit=case.commit,
        )
    if case.limit == "drive":
        rates["mixed"].append(measure_drive(arguments.volume, num_bytes=drive_bytes))
    (run,) = found["runs"].values()
    result = {
        "num_params": found["num_params"],
        "microbatch_rows": config.microbatch_rows,
        **{key: run[key] for key in (
            "step_seconds", "all_step_seconds", "commit_seconds", "warm_seconds", "ways", "plan",
            "placement", "link_bytes", "loss", "passes", "stall_read_seconds", "host_optimizer",
        )},
    }  # fmt: skip
    if case.limit:
        result["limit"] = limit_of(case, result, rates)
    return result


def limit_of(case: Case, result: dict[str, Any], rates: dict[str, Any]) -> dict[str, Any]:
    """What the links alone would take for a step, in seconds, and the step's ratio to it.

    `needed` counts the bytes that any way must move, `moved` those that the run did move.
    """
    links, step = result["link_bytes"], result["step_seconds"]
    if case.limit == "pcie":
        up, down = (each * result["num_params"] for each in (UP_BYTES, DOWN_BYTES))
        needed = copy_limit_seconds(up, down, rates)
        moved = copy_limit_seconds(links["h2d"], links["d2h"], rates)
    else:
        step += result["commit_seconds"]
        mixed = sum(rates["mixed"]) / len(rates["mixed"])
        needed = (UP_BYTES + DOWN_BYTES) * result["num_params"] / mixed
        moved = (links["nvme_read"] + links["nvme_write"]) / mixed
    return {
        "rates": rates,
        "needed_seconds": needed,
        "moved_seconds": moved,
        "ratio_to_needed": needed / step,
        "ratio_to_moved": moved / step,
    }


if __name__ == "__main__":
    sys.exit(main())
