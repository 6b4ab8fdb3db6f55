"""AdamW on the CPU beside memory itself: forms of the update, thread by thread.

Every form updates the same state, `--params` parameters with bfloat16 gradients, and is held to
the bits of the plain torch twin first. `GB/s` counts 26 bytes a parameter: 14 read and 12 written.
Beside it stand a copy of memory and an in-place pass (each reads and writes what it counts), by as
many threads. The cases take turns and the fastest round counts, since others may use the box.
Prints a table, and one JSON object where `--json` says; the exit status is 1 when a form of the
product has other bits than the twin.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.inputs import box
from headrace.engine.adamw import AdamScalars, adamw_torch
from headrace.engine.adamw_cpu import adamw_chunked, adamw_fused, cpu_kernel
from headrace.engine.config import TrainConfig
from headrace.engine.cores import usable_cores
from headrace.engine.ranges import RangePool
from headrace.engine.state import StateViews, split_master

BYTES = 26
FACTOR = 0.37
Update = Callable[[RangePool, StateViews, torch.Tensor, float, AdamScalars], None]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=int, default=2**24)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.params, arguments.rounds)
    for row in result["rows"]:
        print(
            f"{row['case']:12} {row['threads']:3} threads {row['gb_per_second']:7.1f} GB/s, "
            f"{row['share_of_in_place']:.2f} of the in-place pass"
            + (f", {row['params_per_second'] / 1e9:.2f} G params/s, bits "
               f"{'equal' if row['bits_equal'] else 'DIFFER'}" if "bits_equal" in row else "")
        )  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    product = [row for row in result["rows"] if row["case"] in ("fused", "chunked")]
    return 0 if all(row["bits_equal"] for row in product) else 1


@dataclass(frozen=True, slots=True)
class Case:
    """Something to time: `work` moves `moved_bytes` with `threads` threads."""

    name: str
    threads: int
    moved_bytes: int
    work: Callable[[], None]
    bits_equal: bool | None = None


def measure(num_params: int, rounds: int) -> dict[str, Any]:
    """Every case at 1, 2, 4, ... threads up to the cores of this process."""
    cores = usable_cores()
    counts = [2**i for i in range(cores.bit_length()) if 2**i < cores] + [cores]
    config = TrainConfig(model="m", dataset="d", learning_rate=3e-4, weight_decay=0.1)
    scalars = AdamScalars.at(17, learning_rate=3e-4, config=config)
    forms: dict[str, Update] = {"fused": adamw_fused, "chunked": adamw_chunked}
    forms["inductor"] = inductor_update()
    state, grad = inputs(num_params)
    source = np.ones(4 * num_params, np.uint8)
    target = np.ones_like(source)
    values = np.ones(num_params, np.float32)
    cases = []
    for count in counts:
        pool = RangePool(count, f"bench-{count}")
        cases += [
            Case("copy", count, 2 * source.nbytes, stream(pool, source, target)),
            Case("in place", count, 2 * values.nbytes, in_place(pool, values)),
        ]
        for name, update in forms.items():
            if name == "fused" and cpu_kernel().form != "fused":
                continue
            equal = has_the_twins_bits(pool, update, scalars)

            def work(pool: RangePool = pool, update: Update = update) -> None:
                update(pool, state, grad, FACTOR, scalars)

            cases.append(Case(name, count, BYTES * num_params, work, equal))
    seconds = alternate(cases, rounds)
    rates = {
        (case.name, case.threads): case.moved_bytes / min(seconds[i]) / 1e9
        for i, case in enumerate(cases)
    }
    rows = []
    for i, case in enumerate(cases):
        row: dict[str, Any] = {
            "case": case.name,
            "threads": case.threads,
            "seconds": seconds[i],
            "gb_per_second": rates[case.name, case.threads],
            "share_of_in_place": rates[case.name, case.threads] / rates["in place", case.threads],
            "share_of_copy": rates[case.name, case.threads] / rates["copy", case.threads],
        }
        if case.bits_equal is not None:
            row["params_per_second"] = num_params / min(seconds[i])
            row["bits_equal"] = case.bits_equal
        rows.append(row)
    kernel = cpu_kernel()
    return {
        "params": num_params,
        "kernel": f"{kernel.form}: {kernel.why}",
        "cores": cores,
        "rows": rows,
        "box": box(),
    }


def alternate(cases: list[Case], rounds: int) -> list[list[float]]:
    """Seconds of every case, in every round; a first round, not counted, warms up."""
    seconds: list[list[float]] = [[] for _ in cases]
    for turn in range(rounds + 1):
        for i, case in enumerate(cases):
            started = perf_counter()
            case.work()
            if turn:
                seconds[i].append(perf_counter() - started)
    return seconds


def inputs(num: int) -> tuple[StateViews, torch.Tensor]:
    """Random state and a bfloat16 gradient of `num` parameters."""
    generator = torch.Generator().manual_seed(3)
    master = torch.randn(num, generator=generator) * 0.02
    state = StateViews(
        torch.empty(num, dtype=torch.bfloat16),
        torch.empty(num, dtype=torch.int16),
        torch.randn(num, generator=generator) * 1e-3,
        torch.rand(num, generator=generator) * 1e-6,
    )
    split_master(master, state.hi, state.lo)
    return state, torch.randn(num, generator=generator).bfloat16()


def has_the_twins_bits(pool: RangePool, update: Update, scalars: AdamScalars) -> bool:
    """Whether three updates of a small state end with the bits of `adamw_torch`."""
    ends = []
    for apply in (update, None):
        state, grad = inputs(2**20)
        for _ in range(3):
            if apply is None:
                adamw_torch(state, grad, torch.tensor(FACTOR), scalars)
            else:
                apply(pool, state, grad, FACTOR, scalars)
        parts = (state.hi.view(torch.int16), state.lo, state.exp_avg, state.exp_avg_sq)
        ends.append([part.view(torch.int16) for part in parts])
    return all(torch.equal(one, two) for one, two in zip(*ends, strict=True))


def stream(pool: RangePool, source: Any, target: Any) -> Callable[[], None]:
    """A copy of memory."""

    def work(start: int, stop: int) -> None:
        np.copyto(target[start:stop], source[start:stop])

    return lambda: pool.run(len(source), work)


def in_place(pool: RangePool, values: Any) -> Callable[[], None]:
    """Every value read, multiplied and written where it was."""

    def work(start: int, stop: int) -> None:
        part = values[start:stop]
        np.multiply(part, np.float32(1.0), out=part)

    return lambda: pool.run(len(values), work)


def inductor_update() -> Update:
    """The update as torch.compile makes it for the CPU (it needs a C++ compiler)."""

    def formula(
        hi: Tensor, lo: Tensor, m: Tensor, v: Tensor, g: Tensor, factor: Tensor, s: AdamScalars
    ) -> None:
        g = g.float() * factor
        p = ((hi.to(torch.int32) << 16) + lo.to(torch.int32)).view(torch.float32)
        p = p * s.decay
        m.copy_(m * s.beta1 + g * s.one_minus_beta1)
        v.copy_(v * s.beta2 + (g * g) * s.one_minus_beta2)
        p = p - (m / (v.sqrt() * s.root_scale + s.eps)) * s.step_size
        bits = p.view(torch.int32)
        rounded = (bits + 0x8000) >> 16
        hi.copy_(rounded.to(torch.int16))
        lo.copy_((bits - (rounded << 16)).to(torch.int16))

    compiled = torch.compile(formula, dynamic=True)

    def update(
        pool: RangePool,
        state: StateViews,
        grad: torch.Tensor,
        factor: float,
        scalars: AdamScalars,
    ) -> None:
        torch.set_num_threads(pool.num_threads)
        hi = state.hi.view(torch.int16)
        scale = torch.tensor(factor)
        compiled(hi, state.lo, state.exp_avg, state.exp_avg_sq, grad, scale, scalars)

    return update


if __name__ == "__main__":
    sys.exit(main())
