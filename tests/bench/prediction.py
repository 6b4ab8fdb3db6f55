"""Does a step take what the plan says, and is `auto` the best? Plans by measured rates, held to it.

Compute is measured when a case begins, and on a CPU also behind the steps of each run: what is
planned by rates of before is held to the steps, and so is the same plan at the mean of both speeds,
which leaves the model's own error. The next run is planned by the last few rounds of measuring, so
that no figure is old; a run on an unsteady box is made again while there is time. A run that fails
is told, and the others go on; so is one that the plan refuses. The result is written after every
run, and taken up where it is there already, so that it can be made in several parts.
"""

import argparse
import gc
import json
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from math import inf
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, process_time
from typing import Any

import torch

from bench.prediction_cases import CASES, MB, MIB, Case, configure, contenders, with_budgets
from bench.watch import memory, reset_peak
from headrace.engine import (
    STRATEGIES,
    CannotFit,
    StrategyConflict,
    TrainConfig,
    bench_step,
    calibrate_compute,
    usable_cores,
)
from headrace.engine.cost import step_cost
from headrace.engine.heap import trim_heap
from headrace.engine.homes import Way
from headrace.engine.measure_shape import measure_shape
from headrace.engine.middle import middle_shape
from headrace.engine.plan import Plan
from headrace.engine.rate_file import read_rates, write_rates
from headrace.engine.rates import LayerRate, Rates, ShapeRates, shape_key
from headrace.engine.step_cost import StepModel
from headrace.engine.step_load import StepLoad
from headrace.service.child import become_like_a_worker
from headrace.storage import HeldUp, VolumeConfig, calibrate_volume

MEDIAN_ERROR, WORST_ERROR, AUTO_SLACK = 0.10, 0.20, 0.05
LEAST_MEMORY, MOST_MEMORY = 0.95, 1.00  # of what is planned, taken
SLACK_BYTES = 100 * MIB  # above the plan, of resident memory on a CPU
STEADY, SPREAD = 0.06, 0.25  # of the planned step, before and behind it; of the steps of a run
MOVED = 0.03  # of the probe, on a GPU: from here on compute is measured again
ROUNDS_AFTER, ROUNDS_COUNTED = 2, 4  # of measuring behind the steps, on a CPU; for the next plan
MINUTES = {"cpu": 12.0, "cuda": 4.0}
TRIES = 3
FAIR_RIVALS = ("ratel", "memascend", "zero_infinity")  # on a CPU with auto's own budgets
RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]


class Probe:
    """A piece of arithmetic as large as a small layer's, timed again and again."""

    def __init__(self, device: str) -> None:
        size, dtype = (256, torch.float32) if device == "cpu" else (4096, torch.bfloat16)
        self._left = torch.randn(size, size, device=device, dtype=dtype)
        self._device = device
        self.seconds()  # the first one starts what torch starts

    def seconds(self) -> float:
        """Of fifty products, the middle one of seven times."""
        times = []
        for _ in range(7):
            self._wait()
            started = perf_counter()
            for _ in range(50):
                self._left @ self._left
            self._wait()
            times.append(perf_counter() - started)
        return median(times)

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


class Bench:
    """The cases on one device, one after the other."""

    def __init__(self, device: str, scratch: Path, steps: int | None) -> None:
        self._device = device
        self._scratch = scratch
        self._steps = steps
        self._base = memory()["VmRSS"]  # after the imports
        self._probe = Probe(device)
        self._calibrated: dict[str, float] = {}  # by case: the probe when compute was measured
        self._rounds: dict[str, list[ShapeRates]] = {}  # by case: the last ones, on a CPU
        self._held_up: dict[str, float] = {}  # by case: by other work, meanwhile

    def volume(self, case: Case) -> VolumeConfig:
        """A folder for each rate, with what was measured there."""
        path = self._scratch / f"{case.throttle}"
        volume = VolumeConfig(path=path, throttle_bytes_per_second=case.throttle * MB)
        if not path.exists():
            path.mkdir()
            calibrate_volume(volume)
        return volume

    def names(self, case: Case) -> list[str]:
        """The strategies to run."""
        self._calibrate(case, self._probe.seconds())
        return contenders(case, self._device, self.volume(case))

    def run(self, case: Case, strategy: str) -> Row:
        """Plan and time one run; with `refused` where the plan has no such run, with `failed` when
        it could not be made."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        row: Row = {"case": case.name, "strategy": strategy, "at": now}
        started = monotonic()
        try:
            row |= self._measure(case, strategy)
        except (CannotFit, StrategyConflict) as error:
            row["refused"] = str(error)
        except Exception as error:  # whatever it is, the other runs are wanted too
            traceback.print_exc()
            row["failed"] = f"{type(error).__name__}: {error}"
        gc.collect()
        if self._device == "cuda":
            torch.cuda.empty_cache()
        return {**row, "wall_seconds": monotonic() - started}

    def _calibrate(self, case: Case, probed: float) -> float:
        """The probe at the last calibration, which is now when the box has changed since."""
        before = self._calibrated.get(case.name)
        moves = self._device == "cuda" and before and abs(probed / before - 1) > MOVED
        if before is None or moves:
            config = configure(case, "auto", self._device)
            volume = self.volume(case)
            found = calibrate_compute(
                case.spec,
                config,
                [volume],
                microbatch_tokens=most_tokens(case),
                row_tokens=case.tokens,
            )
            self._held_up[case.name] = found.held_up
            self._rounds[case.name] = [found.shapes[shape_key(case.spec, config)]]
            self._calibrated[case.name] = (probed + self._probe.seconds()) / 2
        return self._calibrated[case.name]

    def _measure(self, case: Case, strategy: str) -> Row:
        at_calibration = self._calibrate(case, self._probe.seconds())
        volume, on_gpu = self.volume(case), self._device == "cuda"
        config = with_budgets(case, configure(case, strategy, self._device), volume)
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        worked: list[float] = []
        held_up: list[float] = []

        @contextmanager
        def around(step: int) -> Iterator[None]:
            before, watch = process_time(), HeldUp()
            yield
            worked.append(process_time() - before)
            held_up.append(watch.share())

        gc.collect()
        trim_heap()
        reset_peak()
        found = bench_step(
            config,
            spec=case.spec,
            tokens_per_row=case.tokens,
            slots=[config.num_slots],
            volumes=[volume],
            num_steps=self._steps or case.steps,
            commit=case.commits,
            around=around,
            look=lambda work: {"left_in_arena": work.arena.free_bytes, "plan_itself": work.plan},
        )
        peak = memory()["VmHWM"]
        probed = self._probe.seconds() / at_calibration - 1
        (run,) = found["runs"].values()
        plan, timed = run["placement"], run["all_step_seconds"][1:]
        spread = (max(timed) - min(timed)) / run["step_seconds"]
        host = plan["total_host_bytes"]
        reserved = torch.cuda.max_memory_reserved() if on_gpu else None
        # CUDA's own start-up is planned too, and nothing that torch reserves.
        reservable = plan["total_device_bytes"] - plan["device_bytes"]["runtime"]
        drift, layers_drift = probed, None
        if not on_gpu:
            drift, layers_drift = self._drift(case, config, run["plan_itself"], run["ways"][-1])
        then = run["planned_seconds"] * (1 if on_gpu else 1 + drift / 2)
        return {
            "tiers": {tier: plan["tiers"].count(tier) for tier in sorted(set(plan["tiers"]))},
            "bottleneck": plan["forecast"]["bottleneck"],
            "ways": run["ways"],
            "same_run": same_run(plan, run["ways"]),
            "planned_seconds": run["planned_seconds"],
            "measured_seconds": run["step_seconds"],
            "all_seconds": timed,
            "planned_phases": plan["forecast"]["step"]["phases"],
            "passes": run["passes"],
            "stall_read_seconds": run["stall_read_seconds"],
            "processor_seconds": median(worked[1:]),
            "held_up": median(held_up[1:]),
            "held_up_at_calibration": self._held_up[case.name],
            "error": run["planned_seconds"] / run["step_seconds"] - 1,
            "planned_then_seconds": then,
            "error_then": then / run["step_seconds"] - 1,
            "drift": drift,
            "layers_drift": layers_drift,
            "probe_drift": probed,
            "spread": spread,
            "steady": abs(drift) <= STEADY and spread <= SPREAD,
            "planned_device_bytes": plan["total_device_bytes"],
            "reserved_share": reserved and reserved / reservable,
            "planned_host_bytes": host,
            "resident_bytes": None if on_gpu else peak - self._base,
            "host_share": (host - run["left_in_arena"]) / host if host else 1.0,
        }

    def _drift(self, case: Case, config: TrainConfig, plan: Plan, way: Way) -> tuple[float, float]:
        """How much longer the planned step, and a layer, take by what is measured now than by what
        was when it was planned. The case's next run is planned by the last rounds."""
        shapes: list[ShapeRates] = []
        for _ in range(ROUNDS_AFTER):
            most, row = most_tokens(case), case.tokens
            shapes.append(measure_shape(case.spec, config, most_tokens=most, row_tokens=row))
            trim_heap()
        self._rounds[case.name] = [*self._rounds[case.name], *shapes][-ROUNDS_COUNTED:]
        volumes, key = [self.volume(case)], shape_key(case.spec, config)
        rates = read_rates(volumes)
        assert rates is not None
        known = {**rates.shapes, key: middle_shape(self._rounds[case.name])}
        write_rates(volumes, replace(rates, shapes=known))
        now, before = middle_shape(shapes), plan.basis.rates
        layer = layer_seconds(now.layers, most_tokens(case))
        return slower(plan, way, now) - 1, layer / layer_seconds(
            before.layers, most_tokens(case)
        ) - 1


def most_tokens(case: Case) -> int:
    """Of a microbatch."""
    return case.rows * case.tokens // case.microbatches


def layer_seconds(layers: Sequence[LayerRate], tokens: int) -> float:
    """What a layer's forward and backward pass take by its rates at the size nearest to `tokens`,
    in a unit of their own."""
    rate = min(layers, key=lambda one: abs(one.tokens - tokens))
    kept = rate.flops(backward=False, kept=True), rate.flops(backward=True, kept=True)
    rates = (rate.forward_flops, rate.backward_flops, *kept)
    return sum(weight / flops for weight, flops in zip((1, 2, 1, 2), rates, strict=True))


def slower(plan: Plan, way: Way, shape: ShapeRates) -> float:
    """The step in that way at the speed of `shape`, by that at the plan's own."""
    basis = plan.basis
    load = StepLoad.of(basis.sizes)

    def seconds(rates: Rates) -> float:
        model = StepModel(basis.sizes, rates, load)
        return step_cost(model, basis.placement, way, basis.drives).seconds

    now = replace(
        basis.rates,
        layers=shape.layers,
        head_flops=shape.head_flops,
        work={**basis.rates.work, **shape.work},
    )
    return seconds(now) / seconds(basis.rates)


def same_run(plan: Row, ways: list[str]) -> str:
    """What makes two runs the same one by different names."""
    names = ("tiers", "num_slots", "keep_layers", "activation_tiers", "grad_tier", "on_host",
             "host_versions", "cached", "order", "keep_grads")  # fmt: skip
    return json.dumps([[plan[name] for name in names], ways])


def run_all(
    bench: Bench,
    cases: list[Case],
    only: list[str] | None,
    *,
    minutes: float,
    repeats: int,
    before: list[Row],
    keep: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """Every run `repeats` times but for those `before`, as far as there is time; then those that
    were on an unsteady box again, likewise. After each one all rows so far are to be `keep`-t."""
    end = monotonic() + 60 * minutes
    rows = list(before)
    known = {(row["case"], row["strategy"]) for row in before}

    def has_time() -> bool:
        took = [row["wall_seconds"] for row in rows[len(before) :]]
        return monotonic() + max(took, default=0.0) < end

    for case in cases:
        names = only or contenders_of(bench, case, known)
        for name in names * repeats:
            if (case.name, name) in known or not has_time():
                continue
            rows.append(bench.run(case, name))
            print(line(rows[-1]), file=sys.stderr, flush=True)
            keep(rows)
    by_name = {case.name: case for case in cases}
    for tries in range(1, TRIES):
        for i, row in enumerate(rows):
            if row.get("steady", True) or row["case"] not in by_name:
                continue
            if row.get("tries", 1) > tries or monotonic() + row["wall_seconds"] > end:
                continue
            again = bench.run(by_name[row["case"]], row["strategy"])
            print(f"again: {line(again)}", file=sys.stderr, flush=True)
            better = abs(again.get("drift", inf)) <= abs(row["drift"])
            others = {key: row[key] for key in ("measured_seconds", "error", "drift", "spread")}
            rows[i] = {
                **(again if better else row),
                "tries": row.get("tries", 1) + 1,
                "other_tries": [*row.get("other_tries", []), others if better else {
                    key: again.get(key) for key in others
                }],
            }  # fmt: skip
            keep(rows)
    return rows


def contenders_of(bench: Bench, case: Case, known: set[tuple[str, str]]) -> list[str]:
    """The strategies to run; none where all are known, so that nothing is measured for them."""
    if all((case.name, name) in known for name in STRATEGIES):
        return []
    return bench.names(case)


def report(rows: list[Row], device: str) -> dict[str, Any]:
    """All runs, the verdict of each configuration, and whether the promises held."""
    ran = [row for row in rows if was_run(row)]
    cases = {name: verdict(name, rows, device) for name in dict.fromkeys(r["case"] for r in rows)}
    errors = sorted(abs(row["error"]) for row in ran)
    then = sorted(abs(row["error_then"]) for row in ran)
    found = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "machine": platform.platform(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "num_runs": len(ran),
        "num_failed": sum("failed" in row for row in rows),
        "num_refused": sum("refused" in row for row in rows),
        "num_unsteady": sum(not row["steady"] for row in ran),
        "median_error": median(errors) if errors else None,
        "worst_error": errors[-1] if errors else None,
        "median_error_then": median(then) if then else None,
        "worst_error_then": then[-1] if then else None,
        "worst_error_on_a_steady_box": max((abs(r["error"]) for r in ran if r["steady"]),
                                           default=None),
        "cases": cases,
        "not_run": not_run(rows, device),
    }  # fmt: skip
    promised = bool(errors) and median(errors) <= MEDIAN_ERROR and errors[-1] <= WORST_ERROR
    holds = promised and all(one["holds"] for one in cases.values())
    return {**found, "repeated": repeated(ran), "holds": holds, "runs": rows}


def was_run(row: Row) -> bool:
    """Whether there are figures of it."""
    return "failed" not in row and "refused" not in row


def not_run(rows: list[Row], device: str) -> dict[str, list[str]]:
    """By configuration, the strategies of which there is no run; on a GPU only those that nothing
    was run of, since there the best-predicted few are meant to be."""
    known = {(row["case"], row["strategy"]) for row in rows}
    names = STRATEGIES if device == "cpu" else ("auto",)
    missing = {
        case.name: [name for name in names if (case.name, name) not in known]
        for case in CASES[device]
    }
    return {case: left for case, left in missing.items() if left}


def repeated(ran: list[Row]) -> dict[str, Row]:
    """Of runs that were made several times: the medians of their steps, and how far the largest is
    above the smallest."""
    times: dict[str, list[float]] = {}
    for row in ran:
        name = f"{row['case']}: {row['strategy']}"
        times.setdefault(name, []).append(row["measured_seconds"])
    return {
        name: {"measured_seconds": found, "apart": max(found) / min(found) - 1}
        for name, found in times.items()
        if len(found) > 1
    }


def verdict(case: str, rows: list[Row], device: str) -> Row:
    """Of one configuration: its errors, how far `auto` is behind the best, memory where counted."""
    mine = [row for row in rows if row["case"] == case and "refused" not in row]
    ran = [row for row in mine if was_run(row)]
    behind = auto_behind(ran, device)
    memory = all(in_bounds(row) for row in ran)
    errors = [abs(row["error"]) for row in ran]
    holds = bool(ran) and len(ran) == len(mine) and max(errors) <= WORST_ERROR
    return {
        "worst_error": max(errors, default=None),
        "median_error": median(errors) if errors else None,
        "auto_behind_the_best": behind,
        "memory_as_planned": memory,
        "holds": holds and memory and (behind is None or behind <= AUTO_SLACK),
    }


def auto_behind(ran: list[Row], device: str) -> float | None:
    """Of the best step, the share that auto's takes more; None where it or every rival did not run.

    A rival that was given memory which auto was not, or that is the same run, is none.
    """
    auto = next((row for row in ran if row["strategy"] == "auto"), None)
    if auto is None:
        return None
    rivals = [
        row["measured_seconds"]
        for row in ran
        if (device == "cuda" or row["strategy"] in FAIR_RIVALS)
        and row["same_run"] != auto["same_run"]
    ]
    if not rivals:
        return None
    return float(auto["measured_seconds"] / min([auto["measured_seconds"], *rivals]) - 1)


def in_bounds(row: Row) -> bool:
    """Whether what was counted of memory is as planned: on a CPU the arena and, as a bound alone,
    what is resident."""
    shares = [row["host_share"], *filter(None, [row["reserved_share"]])]
    planned = row["planned_device_bytes"] + row["planned_host_bytes"]
    resident = row["resident_bytes"]
    within = resident is None or resident <= planned + SLACK_BYTES
    return within and all(LEAST_MEMORY <= share <= MOST_MEMORY for share in shares)


def line(row: Row) -> str:
    """A run for people."""
    name = f"{row['case']:24} {row['strategy']:14}"
    if "failed" in row:
        return f"{name} FAILED {row['failed']}"
    if "refused" in row:
        return f"{name} refused: {row['refused']}"
    reserved = row["reserved_share"]
    return (
        f"{name} {row['bottleneck']:8} planned {row['planned_seconds']:7.3f} s  measured "
        f"{row['measured_seconds']:7.3f} s {100 * row['error']:+6.1f} %, at the speed meanwhile "
        f"{100 * row['error_then']:+6.1f} %"
        + (f"  reserved {reserved:.3f}" if reserved else "")
        + f"  host {row['host_share']:.3f}{resident_words(row)}"
        + ("" if row["steady"] else f"  unsteady (compute {100 * row['drift']:+.0f} %, steps "
                                    f"{100 * row['spread']:.0f} % apart)")
    )  # fmt: skip


def resident_words(row: Row) -> str:
    """How far resident memory was above the plan, or below."""
    if row["resident_bytes"] is None:
        return ""
    planned = row["planned_device_bytes"] + row["planned_host_bytes"]
    return f"  resident {(row['resident_bytes'] - planned) / MIB:+.0f} MiB"


def say(found: dict[str, Any]) -> Iterator[str]:
    """The verdicts for people."""
    for name, one in found["cases"].items():
        parts = [f"{name:24} {'holds' if one['holds'] else 'MISSED'}"]
        if one["worst_error"] is not None:
            parts.append(f"errors {100 * one['median_error']:.1f} % median, "
                         f"{100 * one['worst_error']:.1f} % worst")  # fmt: skip
        if one["auto_behind_the_best"] is not None:
            parts.append(f"auto {100 * one['auto_behind_the_best']:.1f} % behind the best")
        else:
            parts.append("auto beside no other")
        parts.append("memory as planned" if one["memory_as_planned"] else "MEMORY NOT AS PLANNED")
        yield ", ".join(parts)
    for name, one in found["repeated"].items():
        count = len(one["measured_seconds"])
        yield f"{name}, {count} times the same run: medians {100 * one['apart']:.0f} % apart"
    if found["num_runs"]:
        yield (
            f"{found['num_runs']} runs, {found['num_failed']} failed, {found['num_refused']} "
            f"refused, {found['num_unsteady']} on an unsteady box: "
            f"{100 * found['median_error']:.1f} % median, "
            f"{100 * found['worst_error']:.1f} % worst; at the speed meanwhile "
            f"{100 * found['median_error_then']:.1f} % and "
            f"{100 * found['worst_error_then']:.1f} %: "
            + (
                f"all held that ran ({len(found['cases'])} cases)"
                if found["holds"]
                else "NOT ALL HELD"
            )
        )
    for name, left in found["not_run"].items():
        yield f"{name}: not run by {', '.join(left)}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--volume", type=Path, help="a directory on the drive that is meant")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, help="timed steps a run, after one; 5 unless given")
    parser.add_argument("--case", action="append", help="only those whose name begins like this")
    parser.add_argument("--strategy", action="append", help="only these; all unless given")
    parser.add_argument("--minutes", type=float, help="after which no run begins")
    parser.add_argument(
        "--results",
        type=Path,
        help="the result's file, in place of the dated one; runs that are in it are taken up",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=1,
        help="of every run: how far the medians of one run are apart says what no prediction can "
        "come below",
    )
    options = parser.parse_args()
    cases = [
        case
        for case in CASES[options.device]
        if not options.case or any(case.name.startswith(name) for name in options.case)
    ]
    become_like_a_worker()
    if options.device == "cpu":  # one core is left to the threads that move records
        torch.set_num_threads(max(1, usable_cores() - 1))
    minutes = options.minutes or MINUTES[options.device]
    date = datetime.now(UTC).date().isoformat()
    path = options.results or RESULTS / f"{date}-prediction-{options.device}.json"

    def keep(rows: list[Row]) -> None:
        path.write_text(json.dumps(report(rows, options.device), indent=1) + "\n")

    with tempfile.TemporaryDirectory(dir=options.volume, prefix="prediction-") as scratch:
        bench = Bench(options.device, Path(scratch), options.steps)
        rows = run_all(
            bench,
            cases,
            options.strategy,
            minutes=minutes,
            repeats=options.repeats,
            before=json.loads(path.read_text())["runs"] if path.exists() else [],
            keep=keep,
        )
    keep(rows)
    found = report(rows, options.device)
    print(*say(found), f"written to {path}", sep="\n")
    sys.exit(0 if found["holds"] else 1)


if __name__ == "__main__":
    main()
