"""One steady step of the product under torch.profiler: where every millisecond goes.

    python -m bench.profile_step --case 12x16k --json profile.json --trace trace.json.gz

The limit is the model's arithmetic, 6 N T, at the rate of a large matrix product measured in the
same run; what a step takes above it is listed by cause.
"""

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.gpu_cases import CASES, PRODUCT
from bench.gpu_step import case_spec, product_config
from bench.inputs import box, finish
from bench.trace_summary import STEP, VISIT, above_limit, summarise
from headrace.engine import bench_step
from headrace.engine.forward import ForwardCompute
from headrace.storage import VolumeConfig

PROFILED = 2  # steps before it: one compiles, one runs as the later ones do


def main() -> int:
    """Run, trace one step, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=list(CASES), required=True)
    parser.add_argument("--who", choices=list(PRODUCT), default="headrace")
    parser.add_argument("--microbatch-rows", type=int, help="the case's")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--volume", type=Path, help="drive for state on NVMe")
    parser.add_argument("--json", type=Path, help="also write the result there")
    parser.add_argument("--trace", type=Path, help="keep the trace there, as .json.gz")
    arguments = parser.parse_args()
    case = CASES[arguments.case]
    config = product_config(case, PRODUCT[arguments.who], arguments)
    peak = matmul_rate(case.device)
    with tempfile.TemporaryDirectory(dir=arguments.volume) as folder, marking_visits():
        traced = Traced(Path(folder) / "trace.json", case.device)
        found = bench_step(
            config,
            spec=case_spec(case, config),
            volumes=[VolumeConfig(path=Path(folder))],
            tokens_per_row=case.tokens_per_row,
            slots=(config.num_slots,),
            num_steps=PROFILED + 1,
            commit=case.commit,
            around=traced.around,
        )
        text = traced.path.read_bytes()
    if arguments.trace is not None:
        arguments.trace.write_bytes(gzip.compress(text))
    summary = summarise(json.loads(text)["traceEvents"])
    (run,) = found["runs"].values()
    limit = 6 * found["num_params"] * case.tokens / peak * 1000
    result = {
        "case": arguments.case,
        "who": arguments.who,
        "peak_flops": peak,
        "limit_ms": limit,
        "above_limit_ms": above_limit(summary, limit),
        "summary": summary,
        "all_step_seconds": run["all_step_seconds"],
        "plan": run["plan"],
        "config": config.to_dict(),
        "box": box(),
    }
    finish(result, arguments.json)
    print(report(result))
    return 0


class Traced:
    """Traces one step of a run, from before it is given to the device until it is done."""

    def __init__(self, path: Path, device: str) -> None:
        self.path = path
        self._device = device

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Enter around each step; the one to be traced is recorded to `path`."""
        if step != PROFILED:
            yield
            return
        activities = [ProfilerActivity.CPU]
        if self._device == "cuda":
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.synchronize()
        with profile(activities=activities) as profiler:
            with record_function(STEP):
                yield
            if self._device == "cuda":
                torch.cuda.synchronize()  # copies for the next step are under way
        profiler.export_chrome_trace(str(self.path))


@contextmanager
def marking_visits() -> Iterator[None]:
    """Name in the trace what each visit of a step does."""
    visit = ForwardCompute.visit

    def marked(self: ForwardCompute, one: Any, slot: Any) -> None:
        with record_function(f"{VISIT}{one.phase} {one.action}"):
            visit(self, one, slot)

    with patch.object(ForwardCompute, "visit", marked):
        yield


def matmul_rate(device: str) -> float:
    """Operations a second of a large bf16 matrix product of random numbers."""
    size, times = (8192, 20) if device == "cuda" else (256, 5)
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))
    for _ in range(3):
        left @ right
    _synchronize(device)
    started = perf_counter()
    for _ in range(times):
        left @ right
    _synchronize(device)
    return 2 * size**3 * times / (perf_counter() - started)


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def report(result: dict[str, Any]) -> str:
    """The summary as lines."""
    summary = result["summary"]
    lines = [
        f"{result['case']} {result['who']}: step {summary['step_ms']:.1f} ms, limit "
        f"{result['limit_ms']:.1f} ms (6 N T at {result['peak_flops'] / 1e12:.0f} TFLOPS)",
        "above the limit:",
    ]
    lines += [f"  {ms:9.2f}  {name}" for name, ms in result["above_limit_ms"].items()]
    lines.append("by phase:")
    for phase, kinds in summary["by_phase_ms"].items():
        shown = ", ".join(f"{kind} {ms:.2f}" for kind, ms in kinds.items())
        lines.append(f"  {sum(kinds.values()):9.2f}  {phase}: {shown}")
    lines.append("idle by place:")
    lines += [f"  {ms:9.2f}  {place}" for place, ms in summary["idle_by_place_ms"].items()]
    lines.append("links: " + ", ".join(f"{k} {ms:.1f}" for k, ms in summary["links_ms"].items()))
    lines.append("longest kernels:")
    lines += [
        f"  {k['ms']:9.2f}  x{k['count']:<5} {k['kind']}: {k['name'][:90]}"
        for k in summary["longest_kernels_ms"][:12]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
