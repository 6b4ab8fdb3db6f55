"""Does a step take what the plan says, and is `auto` the best? Plans by measured rates, held to it.

Compute is measured when a case begins, and on a CPU also behind the steps of each run: what is
planned by rates of before is held to the steps, and so is the same plan at the mean of both speeds,
which leaves the model's own error. The next run is planned by the last few rounds of measuring, so
that no figure is old. What is measured is the median of five samples, each the mean of as many
steps as take a second and a half; on a GPU that of the steps.

A run says nothing of a plan while the box changes its speed: where its samples are further apart
than `SPREAD` of their median, or what is measured behind it makes the plan more than `DRIFT` longer
or shorter, it is made again at once, up to `--repeat` times. The first steady one counts, whatever
its error; one that never was is shown as it is and counts as missed. What the others gave is kept.

A run that fails is told, and the others go on; so is one that the plan refuses. The result is
written after every run, and taken up where it is there already, so that it can be made in several
parts.
"""

import argparse
import gc
import hashlib
import json
import platform
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from math import ceil, inf
from pathlib import Path
from statistics import mean, median
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
from headrace.engine.plan import Plan
from headrace.engine.rate_file import read_rates, write_rates
from headrace.engine.rates import LayerRate, Rates, ShapeRates, shape_key
from headrace.engine.rounds import shape_of_rounds
from headrace.engine.step_cost import StepModel
from headrace.engine.step_load import StepLoad
from headrace.service.child import become_like_a_worker
from headrace.storage import HeldUp, VolumeConfig, calibrate_volume

MEDIAN_ERROR, WORST_ERROR, AUTO_SLACK = 0.10, 0.20, 0.05
LEAST_MEMORY, MOST_MEMORY = 0.95, 1.00  # of what is planned, taken
SLACK_BYTES = 100 * MIB  # above the plan, of resident memory on a CPU
# How far the planned step may move from before a run to behind it, and how far its samples may be
# apart, by their median: half of the runs are held to the one, all to the other.
DRIFT, SPREAD = 0.10, 0.20
SAMPLES, SAMPLE_SECONDS = 5, 1.5  # on a CPU; on a GPU a sample is a step
SURE = 0.8  # of a planned step, taken at least
MOVED = 0.03  # of the probe, on a GPU: from here on compute is measured again
ROUNDS_AFTER, ROUNDS_COUNTED = 4, 8  # of measuring behind the steps, on a CPU; for the next plan
MINUTES = {"cpu": 12.0, "cuda": 4.0}
REPEAT = 3
FORM = 3  # of a result: one of another form is not gone on with
FAIR_RIVALS = ("ratel", "memascend", "zero_infinity")  # on a CPU with auto's own budgets
RESULTS = Path(__file__).parent / "results"
ROOMS = [Path(__file__).parents[2] / room for room in ("engine", "storage")]
Row = dict[str, Any]
Errors = tuple[float, float] | None  # in the middle and at worst


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
        row: Row = {"case": case.name, "strategy": strategy, "at": now, "sources": sources()}
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
            # It is a mean of rounds itself.
            self._rounds[case.name] = [found.shapes[shape_key(case.spec, config)]] * ROUNDS_AFTER
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
            num_steps=(self._steps or case.steps)
            if on_gpu
            else lambda planned: SAMPLES * self._per_sample(planned),
            commit=case.commits,
            around=around,
            look=lambda work: {"left_in_arena": work.arena.free_bytes, "plan_itself": work.plan},
        )
        peak = memory()["VmHWM"]
        probed = self._probe.seconds() / at_calibration - 1
        (run,) = found["runs"].values()
        plan, timed = run["placement"], run["all_step_seconds"][1:]
        each = 1 if on_gpu else len(timed) // SAMPLES
        samples = means(timed, each)
        measured = median(samples)
        spread = (max(samples) - min(samples)) / measured
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
            "measured_seconds": measured,
            "samples": samples,
            "steps_of_a_sample": each,
            "all_seconds": timed,
            "planned_phases": plan["forecast"]["step"]["phases"],
            "passes": run["passes"],
            "stall_read_seconds": run["stall_read_seconds"],
            "processor_seconds": median(worked[1:]),
            "held_up": median(held_up[1:]),
            "held_up_at_calibration": self._held_up[case.name],
            "error": run["planned_seconds"] / measured - 1,
            "planned_then_seconds": then,
            "error_then": then / measured - 1,
            "drift": drift,
            "layers_drift": layers_drift,
            "probe_drift": probed,
            "spread": spread,
            "steady": abs(drift) <= DRIFT and spread <= SPREAD,
            "planned_device_bytes": plan["total_device_bytes"],
            "reserved_share": reserved and reserved / reservable,
            # Of what is planned without the allocator's own: what was given out at most.
            "allocated_share": torch.cuda.max_memory_allocated()
            / (reservable - plan["device_bytes"]["allocator"])
            if on_gpu
            else None,
            "planned_host_bytes": host,
            "resident_bytes": None if on_gpu else peak - self._base,
            "host_share": (host - run["left_in_arena"]) / host if host else 1.0,
        }

    def _per_sample(self, planned: float) -> int:
        """Steps of a sample that is long enough, unless the plan is much too long."""
        return self._steps or max(1, ceil(SAMPLE_SECONDS / (SURE * planned)))

    def _drift(self, case: Case, config: TrainConfig, plan: Plan, way: Way) -> tuple[float, float]:
        """How much longer the planned step, and a layer, take by what is measured now than by what
        was when it was planned. The case's next run is planned by the last rounds."""
        shapes: list[ShapeRates] = []
        most, row = most_tokens(case), case.tokens
        for _ in range(ROUNDS_AFTER):
            shapes.append(
                measure_shape(case.spec, config, most_tokens=most, row_tokens=row, sizes=[most])
            )
            trim_heap()
        self._rounds[case.name] = [*self._rounds[case.name], *shapes][-ROUNDS_COUNTED:]
        volumes, key = [self.volume(case)], shape_key(case.spec, config)
        rates = read_rates(volumes)
        assert rates is not None
        known = {**rates.shapes, key: shape_of_rounds(self._rounds[case.name])}
        write_rates(volumes, replace(rates, shapes=known))
        now, before = shape_of_rounds(shapes), plan.basis.rates
        layer = layer_seconds(now.layers, most) / layer_seconds(before.layers, most)
        return slower(plan, way, now) - 1, layer - 1


def means(seconds: Sequence[float], each: int) -> list[float]:
    """Of so many consecutive ones, one after the other."""
    return [mean(seconds[i : i + each]) for i in range(0, len(seconds), each)]


def sources() -> str:
    """What tells one state of the product's code from another."""
    digest = hashlib.sha256()
    for path in sorted(path for room in ROOMS for path in room.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


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
    times: int,
    repeat: int,
    before: list[Row],
    keep: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """Every run `times` times but for those `before`, as far as there is time. One that is unsteady
    is made again at once, up to `repeat` times over all parts of a result. After each one all rows
    so far are to be `keep`-t."""
    end = monotonic() + 60 * minutes
    rows = list(before)
    took: list[float] = []

    def has_time() -> bool:
        return monotonic() + max(took, default=0.0) < end

    def settle(i: int, case: Case, name: str) -> None:
        """Make row i, which is there or is to be added, until it is steady."""
        while has_time() and (i == len(rows) or is_in_doubt(rows[i], repeat)):
            row = bench.run(case, name)
            took.append(row["wall_seconds"])
            print(line(row), file=sys.stderr, flush=True)
            if i < len(rows):
                row["discarded"] = [*rows[i].get("discarded", []), discarded(rows[i])]
            rows[i:] = [row, *rows[i + 1 :]]
            keep(rows)

    for case in cases:
        known = [(row["case"], row["strategy"]) for row in rows]
        names = only or contenders_of(bench, case, rows, times=times, repeat=repeat)
        for name in names:
            places = [i for i, one in enumerate(known) if one == (case.name, name)]
            for i in places:
                settle(i, case, name)
            for _ in range(times - len(places)):
                settle(len(rows), case, name)
    return rows


def is_in_doubt(row: Row, repeat: int) -> bool:
    """Whether it was unsteady and may be made again."""
    return not row.get("steady", True) and len(row.get("discarded", [])) < repeat


def discarded(row: Row) -> Row:
    """What is kept of a run that is made again."""
    names = ("at", "planned_seconds", "measured_seconds", "samples", "error", "error_then", "drift",
             "spread")  # fmt: skip
    return {name: row[name] for name in names}


def read_rows(path: Path) -> list[Row]:
    """The runs of an earlier part of a result; none where there is none. ValueError where they are
    of another form, so that they mean something else."""
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    if found.get("form") != FORM:
        raise ValueError(
            f"{path} was written by another version of this script (form {found.get('form')}, "
            f"{FORM} wanted): name another file by --results, or move this one away"
        )
    rows: list[Row] = found["runs"]
    return rows


def contenders_of(
    bench: Bench, case: Case, rows: list[Row], *, times: int, repeat: int
) -> list[str]:
    """The strategies to run; none where all are settled `times` times, so that nothing is measured
    for them."""
    mine = [row for row in rows if row["case"] == case.name]
    settled = Counter(row["strategy"] for row in mine if not is_in_doubt(row, repeat))
    return [] if all(settled[name] >= times for name in STRATEGIES) else bench.names(case)


def report(rows: list[Row], device: str) -> dict[str, Any]:
    """All runs, the verdict of each configuration, and whether the promises held."""
    ran = [row for row in rows if was_run(row)]
    cases = {name: verdict(name, rows, device) for name in dict.fromkeys(r["case"] for r in rows)}
    tries = [one for row in ran for one in (row, *row.get("discarded", []))]
    found = {
        "form": FORM,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "machine": platform.platform(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "sources": sorted({row["sources"] for row in rows}),
        "rule": {"drift": DRIFT, "spread": SPREAD,
                 **({"samples": SAMPLES, "sample_seconds": SAMPLE_SECONDS} if device == "cpu"
                    else {"samples": "steps"})},
        "num_runs": len(ran),
        "num_failed": sum("failed" in row for row in rows),
        "num_refused": sum("refused" in row for row in rows),
        "num_unsteady": sum(not row["steady"] for row in ran),
        "num_repeated": sum(bool(row.get("discarded")) for row in ran),
        "num_discarded": len(tries) - len(ran),
        "errors": middle_and_worst(ran),
        "errors_of_steady_runs": middle_and_worst([row for row in ran if row["steady"]]),
        "errors_with_what_was_discarded": middle_and_worst(tries),
        "errors_then": middle_and_worst(ran, "error_then"),
        "cases": cases,
        "not_run": not_run(rows, device),
    }  # fmt: skip
    middle, worst = middle_and_worst(ran) or (inf, inf)
    promised = middle <= MEDIAN_ERROR and worst <= WORST_ERROR
    held = promised and all(one["holds"] for one in cases.values())
    holds = held and not found["not_run"]  # the promise is of all
    return {**found, "repeated": repeated(ran), "held_so_far": held, "holds": holds, "runs": rows}


def middle_and_worst(rows: list[Row], name: str = "error") -> Errors:
    """Of their errors, without signs."""
    errors = [abs(row[name]) for row in rows]
    return (median(errors), max(errors)) if errors else None


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
    """Of one configuration: its errors, how far `auto` is behind the best, memory where counted. It
    holds where every run was steady, and within its bounds."""
    mine = [row for row in rows if row["case"] == case and "refused" not in row]
    ran = [row for row in mine if was_run(row)]
    behind = auto_behind(ran, device)
    memory = all(in_bounds(row) for row in ran)
    errors = [abs(row["error"]) for row in ran]
    steady = all(row["steady"] for row in ran)
    holds = bool(ran) and len(ran) == len(mine) and steady and max(errors) <= WORST_ERROR
    return {
        "worst_error": max(errors, default=None),
        "median_error": median(errors) if errors else None,
        "num_unsteady": sum(not row["steady"] for row in ran),
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
    yield (
        f"{found['num_runs']} runs, {found['num_failed']} failed, {found['num_refused']} refused, "
        f"{found['num_unsteady']} never steady, {found['num_repeated']} made again "
        f"({found['num_discarded']} tries): errors {words(found['errors'])}, of the steady ones "
        f"{words(found['errors_of_steady_runs'])}, with all that was discarded "
        f"{words(found['errors_with_what_was_discarded'])}, at the speed meanwhile "
        f"{words(found['errors_then'])}: "
        + (
            "ALL HELD"
            if found["holds"]
            else "so far all held"
            if found["held_so_far"]
            else "NOT HELD"
        )
    )
    for name, left in found["not_run"].items():
        yield f"{name}: not run by {', '.join(left)}"


def words(errors: Errors) -> str:
    """The middle and the worst one."""
    if errors is None:
        return "none"
    return "{:.1f} % median and {:.1f} % worst".format(*(100 * error for error in errors))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--volume", type=Path, help="a directory on the drive that is meant")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, help="of a sample on a CPU, of a run on a GPU")
    parser.add_argument("--case", action="append", help="only those whose name begins like this")
    parser.add_argument("--strategy", action="append", help="only these; all unless given")
    parser.add_argument("--minutes", type=float, help="after which no run begins")
    parser.add_argument(
        "--results",
        type=Path,
        help="the result's file, in place of the dated one; runs that are in it are taken up",
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=REPEAT,
        help="how often a run on an unsteady box is made again at most",
    )
    parser.add_argument(
        "--times",
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
    try:
        before = read_rows(path)
    except ValueError as error:
        parser.error(str(error))

    def keep(rows: list[Row]) -> None:
        path.write_text(json.dumps(report(rows, options.device), indent=1) + "\n")

    with tempfile.TemporaryDirectory(dir=options.volume, prefix="prediction-") as scratch:
        bench = Bench(options.device, Path(scratch), options.steps)
        rows = run_all(
            bench,
            cases,
            options.strategy,
            minutes=minutes,
            times=options.times,
            repeat=options.repeat,
            before=before,
            keep=keep,
        )
    keep(rows)
    found = report(rows, options.device)
    print(*say(found), f"written to {path}", sep="\n")
    sys.exit(0 if found["holds"] else 1)


if __name__ == "__main__":
    main()
