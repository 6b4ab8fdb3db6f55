"""Timing of the step alone, over random weights and random tokens: no model files are needed."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from headrace.storage import TensorStore, VolumeConfig

from .box import detect_box
from .config import TrainConfig
from .data import Microbatch
from .model import ModelSpec
from .mover import Mover
from .optimizer import AdamScalars
from .pending import PendingUpdate, sweep
from .plan import make_plan
from .run import describe, deterministic
from .state import clear_state, state_record, write_weights
from .step import StepInputs, StepOutcome, train_step
from .visits import update_visit
from .workspace import Workspace


def bench_step(
    config: TrainConfig,
    *,
    spec: ModelSpec,
    tokens_per_row: int,
    slots: Sequence[int],
    volumes: Sequence[VolumeConfig] | None = None,
    num_steps: int = 3,
    seed: int = 0,
    commit: bool = True,
) -> dict[str, Any]:
    """Time `num_steps` steps (after one that warms up) for each number of slots.

    The first entry of `slots` that is 1 gives each stage's own seconds, since nothing overlaps
    there: `overlapped_seconds` is the sum over the passes of max(compute, read + write) and
    `serial_seconds` the sum of all. Times are medians over the steps, in seconds; bytes are
    payload per step. `commit=False` leaves the commits out, as `durability none` would.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        where = list(volumes or [VolumeConfig(path=Path(scratch))])
        runs = {
            count: _time_slots(config, spec, where, count, tokens_per_row, num_steps, seed, commit)
            for count in slots
        }
    result: dict[str, Any] = {
        "num_params": spec.num_params,
        "tokens_per_step": config.batch_rows * tokens_per_row,
        "device": config.device,
        "compute_dtype": config.compute_dtype,
        "state_format": config.state_format,
        "clip_mode": config.clip_mode,
        "runs": {str(count): run for count, run in runs.items()},
    }
    if 1 in runs:
        passes = runs[1]["passes"].values()
        overlapped = sum(max(p["compute"], p["read"] + p["write"]) for p in passes)
        serial = sum(p["compute"] + p["read"] + p["write"] for p in passes)
        result |= {"overlapped_seconds": overlapped, "serial_seconds": serial}
        for count, run in result["runs"].items():
            limit = serial if count == "1" else overlapped
            run["ratio_to_limit"] = run["step_seconds"] / limit
    return result


def _time_slots(
    config: TrainConfig,
    spec: ModelSpec,
    volumes: Sequence[VolumeConfig],
    num_slots: int,
    tokens_per_row: int,
    num_steps: int,
    seed: int,
    commit: bool,
) -> dict[str, Any]:
    config = replace(config, num_slots=num_slots)
    box = detect_box(device=config.device, volumes=[str(volume.path) for volume in volumes])
    if not commit:  # what lives above NVMe then needs no room on it
        box = replace(box, volumes=dict.fromkeys(box.volumes, 2**63))
    plan = make_plan(spec, config, longest_row_tokens=tokens_per_row, box=box)
    name = f"bench-{num_slots}"
    TensorStore.remove(volumes, name=name)
    stored = [
        layout
        for layout, tier in zip(spec.records, plan.tiers, strict=True)
        if commit or tier == "nvme" or layout.kind == "norm"  # a store has a record at least
    ]
    records = [state_record(layout, config.state_format) for layout in stored]
    try:
        with (
            deterministic(config),
            TensorStore.create(volumes, records, name=name) as store,
            Workspace(spec, config, plan, store) as work,
        ):
            mover = Mover(work)
            store.begin(0)
            fill_random(work, mover, seed)
            if commit:
                mover.flush_homes()
            store.commit({})
            return _time_steps(work, mover, tokens_per_row, num_steps, seed, commit)
    finally:
        TensorStore.remove(volumes, name=name)


def fill_random(work: Workspace, mover: Mover, seed: int) -> None:
    """Give every record random weights (norms one) and zero moments, straight in its tier."""
    generator = torch.Generator(work.device).manual_seed(seed)
    slot = work.ring[0]
    for i, layout in enumerate(work.spec.records):
        master = torch.zeros(layout.num_elements, device=work.device)
        for param in layout.params:
            piece = master[param.offset : param.offset + param.num_elements]
            if len(param.full_shape) == 1:
                piece.fill_(1.0)
            else:
                piece.normal_(0, 0.02, generator=generator)
        place = work.residents.get(layout.name, slot.device)
        clear_state(place, work.records[layout.name])
        write_weights(work.state(layout, slot), master)
        slot.done = work.transfer.fence()
        mover.write(update_visit(i), slot)


def _time_steps(
    work: Workspace, mover: Mover, tokens_per_row: int, num_steps: int, seed: int, commit: bool
) -> dict[str, Any]:
    config = work.config
    generator = torch.Generator().manual_seed(seed + 1)
    outcomes: list[StepOutcome] = []
    seconds: list[float] = []
    links: list[Mapping[str, Any]] = []
    way = "speculative" if work.plan.clip_way == "auto" else work.plan.clip_way
    pending: PendingUpdate | None = None
    for step in range(1, num_steps + 2):
        batches = _random_batches(work, tokens_per_row, generator)
        before = {**work.store.stats().links, **work.transfer.stats()}
        started = perf_counter()
        work.store.begin(step)
        inputs = StepInputs(
            microbatches=batches,
            scalars=AdamScalars.at(step, learning_rate=config.learning_rate, config=config),
            way=way,
            last_norm=None,
            pending=pending,
        )
        outcomes.append(train_step(work, mover, inputs))
        pending = outcomes[-1].pending
        if commit and pending is not None:
            sweep(work, mover, pending)
            pending = None
        seconds.append(perf_counter() - started)
        after = {**work.store.stats().links, **work.transfer.stats()}
        links.append({link: (after[link] - before[link]).payload_bytes for link in after})
        if commit:
            mover.flush_homes()
            work.store.commit({})
    return {
        "step_seconds": median(seconds[1:]),
        "all_step_seconds": seconds,
        "passes": _passes(outcomes[1:]),
        "stall_read_seconds": median(
            sum(t.stall_read for _, t in outcome.times) for outcome in outcomes[1:]
        ),
        "link_bytes": links[-1],
        "plan": describe(work.plan),
        "loss": outcomes[-1].loss_sum / max(1, outcomes[-1].num_trained),
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


def _random_batches(
    work: Workspace, tokens_per_row: int, generator: torch.Generator
) -> list[Microbatch]:
    config = work.config
    batches = []
    for start in range(0, config.batch_rows, config.microbatch_rows):
        rows = min(config.microbatch_rows, config.batch_rows - start)
        ids = torch.randint(0, work.spec.vocab_size, (rows, tokens_per_row), generator=generator)
        batches.append(
            Microbatch(
                ids=ids,
                labels=ids,
                row_indices=tuple(range(start, start + rows)),
                num_tokens=ids.numel(),
                num_trained=rows * (tokens_per_row - 1),
            )
        )
    return batches
