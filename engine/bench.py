"""Timing of the step alone, over random weights and random tokens: no model files are needed."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from headrace.storage import TensorStore, VolumeConfig

from .bench_inputs import fill_random, random_batches
from .bench_writes import CountingStore
from .box import detect_box
from .config import TrainConfig
from .homes import Tier, Way
from .model import ModelSpec, RecordLayout
from .mover import Mover
from .optimizer import AdamScalars
from .packing import settle_microbatch
from .pending import PendingUpdate, settle_pending
from .plan import make_plan
from .rates import Rates
from .run import describe, deterministic, keep_compiled
from .state import state_record
from .step import StepOutcome, train_step
from .step_compute import StepInputs
from .step_report import Links, links_of
from .step_truth import StepTruth
from .ways import next_way
from .workspace import Workspace

Around = Callable[[int], AbstractContextManager[None]]
Look = Callable[[Workspace], Mapping[str, Any]]
Tell = Callable[[str], None]
NumSteps = int | Callable[[float], int]  # of a step's planned seconds


def _nothing_around(step: int) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timing:
    """What is timed: the steps' data, how many, and what surrounds them."""

    tokens_per_row: int
    num_steps: NumSteps
    seed: int
    commit: bool
    around: Around
    look: Look
    tell: Tell
    rates: Rates | None


def bench_step(
    config: TrainConfig,
    *,
    spec: ModelSpec,
    tokens_per_row: int,
    slots: Sequence[int | None],
    volumes: Sequence[VolumeConfig] | None = None,
    num_steps: NumSteps = 3,
    seed: int = 0,
    commit: bool = True,
    around: Around = _nothing_around,
    look: Look = lambda work: {},
    tell: Tell = lambda line: None,
    rates: Rates | None = None,
) -> dict[str, Any]:
    """Time `num_steps` steps (after one that warms up) for each number of slots: so many, or what a
    function makes of a step's planned seconds. Slots of None are left to the plan and named "auto".

    The first entry of `slots` that is 1 gives each stage's own seconds, since nothing overlaps
    there: `overlapped_seconds` is the sum over the passes of max(compute, read + write) and
    `serial_seconds` the sum of all. Times are medians over the steps, in seconds; bytes are
    payload per step. `commit=False` leaves the commits out (durability none). `around` is entered
    around each step, the one that warms up being number 0. What `look` finds at the end, when the
    last step is committed, is part of a run's result. `tell` hears how far it is, line by line. The
    plan goes by `rates` instead of what is known of the box.

    What is frozen has room on the volumes only where it lives there: training never writes it.
    """
    keep_compiled(config)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        where = list(volumes or [VolumeConfig(path=Path(scratch))])
        timing = _Timing(
            tokens_per_row=tokens_per_row,
            num_steps=num_steps,
            seed=seed,
            commit=commit,
            around=around,
            look=look,
            tell=tell,
            rates=rates,
        )
        runs = {count: _time_slots(config, spec, where, count, timing) for count in slots}
    result: dict[str, Any] = {
        "num_params": spec.num_params,
        "num_trained_params": spec.num_trained_params,
        "tokens_per_step": config.batch_rows * tokens_per_row,
        "device": config.device,
        "compute_dtype": config.compute_dtype,
        "state_format": config.state_format,
        "clip_mode": config.clip_mode,
        "runs": {_named(count): run for count, run in runs.items()},
    }
    return result | _held_against_one_slot(result["runs"])


def _held_against_one_slot(runs: Mapping[str, dict[str, Any]]) -> dict[str, float]:
    """Limits by the stages' seconds with one slot; each run gets its ratio to its own."""
    if "1" not in runs:
        return {}
    passes = runs["1"]["passes"].values()
    overlapped = sum(max(p["compute"], p["read"] + p["write"]) for p in passes)
    serial = sum(p["compute"] + p["read"] + p["write"] for p in passes)
    for count, run in runs.items():
        run["ratio_to_limit"] = run["step_seconds"] / (serial if count == "1" else overlapped)
    return {"overlapped_seconds": overlapped, "serial_seconds": serial}


def _time_slots(
    config: TrainConfig,
    spec: ModelSpec,
    volumes: Sequence[VolumeConfig],
    num_slots: int | None,
    timing: _Timing,
) -> dict[str, Any]:
    started = perf_counter()
    config = settle_microbatch(replace(config, num_slots=num_slots), timing.tokens_per_row)
    box = detect_box(device=config.device, volumes=volumes)
    box = replace(box, rates=timing.rates or box.rates)
    if not timing.commit or len(spec.trained) < len(spec.records):  # not all needs room there
        box = replace(box, volumes=dict.fromkeys(box.volumes, 2**63))
    plan = make_plan(spec, config, longest_row_tokens=timing.tokens_per_row, box=box)
    name = f"bench-{_named(num_slots)}"
    TensorStore.remove(volumes, name=name)
    stored = [
        state_record(layout, config.state_format)
        for layout, tier in zip(spec.records, plan.tiers, strict=True)
        if _is_stored(layout, tier, commit=timing.commit)
    ]
    try:
        with (
            deterministic(config),
            CountingStore.create(volumes, stored, name=name) as store,
            Workspace(spec, config, plan, store) as work,
        ):
            work.plan = replace(plan, volume_bytes=store.status().total_bytes)
            timing.tell(describe(work.plan))
            mover = Mover(work)
            store.begin(0)
            fill_random(work, mover, timing.seed, timing.tell)
            if timing.commit:
                mover.flush_homes()
            store.commit({})
            made = {"start_seconds": perf_counter() - started, "imported_bytes": store.written()}
            wanted = timing.num_steps
            count = wanted if isinstance(wanted, int) else wanted(plan.forecast.step.seconds)
            return {**made, **_time_steps(work, mover, timing, store, count), **timing.look(work)}
    finally:
        TensorStore.remove(volumes, name=name)


def _is_stored(layout: RecordLayout, tier: Tier, *, commit: bool) -> bool:
    """Whether a record streams from the volumes or is committed; a store has one at least."""
    return tier == "nvme" or layout.kind == "norm" or (commit and layout.base is None)


def _named(num_slots: int | None) -> str:
    return "auto" if num_slots is None else str(num_slots)


def _time_steps(
    work: Workspace, mover: Mover, timing: _Timing, store: CountingStore, num_steps: int
) -> dict[str, Any]:
    config = work.config
    generator = torch.Generator().manual_seed(timing.seed + 1)
    truth = StepTruth(work, emit=lambda event: None)
    outcomes, steps = list[StepOutcome](), list[_Timed]()
    pending: PendingUpdate | None = None
    written = store.written()
    since: Links = {}
    for step in range(1, num_steps + 2):
        batches = random_batches(work, timing.tokens_per_row, generator)
        with timing.around(step - 1):
            started = perf_counter()
            if step == 2 or timing.commit:
                mover.pipeline.wait_ahead()
                since = links_of(work)
            work.store.begin(step)
            inputs = StepInputs(
                microbatches=batches,
                scalars=AdamScalars.at(step, learning_rate=config.learning_rate, config=config),
                way=_way(work, outcomes),
                last_norm=None,
                pending=pending,
                another_follows=not timing.commit,
            )
            outcomes.append(train_step(work, mover, inputs))
            pending = outcomes[-1].pending
            if timing.commit and pending is not None:
                settle_pending(work, mover, pending)
                pending = None
            if timing.commit:  # what the processor still does belongs to this step
                mover.host_updates.wait_all()
            seconds = perf_counter() - started
        now = links_of(work)  # what a commit moves is no step's
        owed = inputs.pending is not None
        planned = truth.expected(
            batches, inputs.way, outcomes[-1], owed=owed, committed=timing.commit
        )
        steps.append(
            _Timed(
                way=inputs.way,
                microbatches=len(batches),
                seconds=seconds,
                planned_seconds=planned.seconds,
                commit_seconds=_commit(work, mover) if timing.commit else 0.0,
            )
        )
        timing.tell(f"step {step} of {num_steps + 1}: {seconds:.2f} s")
    if not timing.commit:
        mover.pipeline.wait_ahead()
        now = links_of(work)
    count = 1 if timing.commit else num_steps
    moved = {link: round((now[link] - since[link]).payload_bytes / count) for link in now}
    written = {kind: size - written[kind] for kind, size in store.written().items()}
    mover.host_updates.wait_all()
    updates = asdict(mover.host_updates.stats)
    found = {"link_bytes": moved, "written_bytes": written, "host_optimizer": updates}
    return _run_result(work, outcomes, steps) | found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """One step: how its updates were made, how long it took, and what it moved."""

    way: Way
    microbatches: int
    seconds: float
    planned_seconds: float
    commit_seconds: float


def _way(work: Workspace, outcomes: Sequence[StepOutcome]) -> Way:
    """As in training."""
    clipped = bool(outcomes) and outcomes[-1].clipped
    return next_way(work.config, work.plan.clip_way, clipped_last=clipped)


def _commit(work: Workspace, mover: Mover) -> float:
    """Commit what a step wrote; seconds."""
    started = perf_counter()
    mover.flush_homes()
    work.store.commit({})
    return perf_counter() - started


def _run_result(
    work: Workspace, outcomes: Sequence[StepOutcome], steps: Sequence[_Timed]
) -> dict[str, Any]:
    timed = steps[1:]
    return {
        "step_seconds": median(step.seconds for step in timed),
        "planned_seconds": median(step.planned_seconds for step in timed),
        "all_step_seconds": [step.seconds for step in steps],
        "warm_seconds": steps[0].seconds,
        "commit_seconds": median(step.commit_seconds for step in timed),
        "ways": [step.way for step in timed],
        "microbatches": timed[-1].microbatches,
        "passes": _passes(outcomes[1:]),
        "stall_read_seconds": median(
            sum(t.stall_read for _, t in outcome.times) for outcome in outcomes[1:]
        ),
        "plan": describe(work.plan),
        "placement": work.plan.to_dict(),
        "loss": outcomes[-1].totals.loss,
    }


def _passes(outcomes: Sequence[StepOutcome]) -> dict[str, dict[str, float]]:
    """Median seconds per stage, for each pass over the layers."""
    names = dict.fromkeys(visit.phase for outcome in outcomes for visit, _ in outcome.times)
    return {
        name: {
            stage: median(
                sum(getattr(t, stage) for visit, t in outcome.times if visit.phase == name)
                for outcome in outcomes
            )
            for stage in ("read", "compute", "write")
        }
        for name in names
    }
