"""Timing of the step alone, over random weights and random tokens: no model files are needed."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from headrace.storage import HostArena, TensorStore, VolumeConfig

from .config import TrainConfig
from .data import Microbatch
from .model import ModelSpec
from .mover import Mover
from .optimizer import AdamScalars
from .plan import Box, make_plan
from .run import deterministic
from .state import state_record
from .step import StepInputs, StepOutcome, train_step
from .weights import write_master
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
) -> dict[str, Any]:
    """Time `num_steps` steps (after one that warms up) for each number of slots.

    The first entry of `slots` that is 1 gives each stage's own seconds, since nothing overlaps
    there: `overlapped_seconds` is the sum over the passes of max(compute, read + write) and
    `serial_seconds` the sum of all. Times are medians over the steps, in seconds; bytes are
    payload per step.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as scratch:
        where = list(volumes or [VolumeConfig(path=Path(scratch))])
        runs = {
            count: _time_slots(config, spec, where, count, tokens_per_row, num_steps, seed)
            for count in slots
        }
    result: dict[str, Any] = {
        "num_params": spec.num_params,
        "tokens_per_step": config.batch_rows * tokens_per_row,
        "device": config.device,
        "compute_dtype": config.compute_dtype,
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
) -> dict[str, Any]:
    config = replace(config, num_slots=num_slots)
    box = Box.detect(device=config.device, volumes=[str(volume.path) for volume in volumes])
    plan = make_plan(spec, config, longest_row_tokens=tokens_per_row, box=box)
    name = f"bench-{num_slots}"
    TensorStore.remove(volumes, name=name)
    records = [state_record(layout) for layout in spec.records]
    try:
        with (
            deterministic(config),
            TensorStore.create(volumes, records, name=name) as store,
        ):
            _fill_random(store, spec, plan.slot_bytes, seed)
            with Workspace(spec, config, plan, store) as work:
                return _time_steps(work, tokens_per_row, num_steps, seed)
    finally:
        TensorStore.remove(volumes, name=name)


def _fill_random(store: TensorStore, spec: ModelSpec, slot_bytes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    store.begin(0)
    with HostArena(slot_bytes) as arena:
        slot = arena.carve(slot_bytes)
        for layout in spec.records:
            master = torch.zeros(layout.num_elements)
            for param in layout.params:
                piece = master[param.offset : param.offset + param.num_elements]
                if len(param.full_shape) == 1:
                    piece.fill_(1.0)
                else:
                    piece.normal_(0, 0.02, generator=generator)
            write_master(store, layout, slot, master)
    store.commit({})


def _time_steps(work: Workspace, tokens_per_row: int, num_steps: int, seed: int) -> dict[str, Any]:
    config = work.config
    mover = Mover(work)
    mover.load_homes()
    generator = torch.Generator().manual_seed(seed + 1)
    outcomes: list[StepOutcome] = []
    seconds: list[float] = []
    links: list[Mapping[str, Any]] = []
    way = "speculative" if work.plan.clip_way == "auto" else work.plan.clip_way
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
        )
        outcomes.append(train_step(work, mover, inputs))
        seconds.append(perf_counter() - started)
        after = {**work.store.stats().links, **work.transfer.stats()}
        links.append({link: (after[link] - before[link]).payload_bytes for link in after})
        work.store.commit({})
    return {
        "step_seconds": median(seconds[1:]),
        "all_step_seconds": seconds,
        "passes": _passes(outcomes[1:]),
        "stall_read_seconds": median(
            sum(t.stall_read for _, t in outcome.times) for outcome in outcomes[1:]
        ),
        "link_bytes": links[-1],
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
