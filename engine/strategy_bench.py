"""Every strategy on one model: bytes beside their formula, bits beside the others', and time."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headrace.storage import VolumeConfig

from .bench import bench_step
from .box import detect_box
from .capacity import CannotFit
from .config import TrainConfig
from .homes import Placement
from .model import ModelSpec
from .packing import settle_microbatch
from .plan import make_plan
from .strategies import STRATEGIES, with_strategy
from .strategy_bytes import common_staging_bytes, formula_bytes
from .workspace import Workspace


def bench_strategies(
    config: TrainConfig,
    *,
    spec: ModelSpec,
    tokens_per_row: int,
    volumes: Sequence[VolumeConfig],
    names: Sequence[str] = tuple(STRATEGIES),
    num_steps: int = 3,
) -> Iterator[dict[str, Any]]:
    """Run each strategy on the same random model and rows; one row of the table each.

    Every step commits, and none is clipped as long as `config.max_grad_norm` is large. Where a
    strategy keeps state on the device and elsewhere, the device is given room for half of it.
    ValueError for a name that is none of them.
    """
    box = detect_box(device=config.device, volumes=volumes)
    for name in names:
        chosen = replace(config, strategy=name, **_open_choices(name))  # type: ignore[arg-type]
        tiers = STRATEGIES[chosen.strategy].tiers
        if len(tiers) == 2 and "device" in tiers:
            whole = replace(chosen, strategy="resident", clip_way="serial")
            plan = make_plan(spec, whole, longest_row_tokens=tokens_per_row, box=box)
            half = sum(plan.basis.sizes.state_bytes) // 2
            chosen = replace(chosen, device_bytes=plan.total_device_bytes - half)
        try:
            yield _row(chosen, spec, tokens_per_row, volumes, num_steps)
        except CannotFit as error:
            yield {"strategy": name, "refused": str(error)}


def _open_choices(name: str) -> dict[str, Any]:
    """What the formula knows nothing of: where gradients wait, and layers kept by `auto`."""
    keeps = name in ("auto", "ratel", "resident")
    return {"grad_tier": "host", "recompute": "auto" if keeps else "all"}


def _row(
    config: TrainConfig,
    spec: ModelSpec,
    tokens_per_row: int,
    volumes: Sequence[VolumeConfig],
    num_steps: int,
) -> dict[str, Any]:
    _reset_peaks(config)
    before = _resident_bytes("VmRSS")
    found = bench_step(
        config,
        spec=spec,
        tokens_per_row=tokens_per_row,
        slots=[config.num_slots],
        volumes=volumes,
        num_steps=num_steps,
        look=digest,
    )
    (run,) = found["runs"].values()
    plan = run["placement"]
    fields = ("tiers", "num_slots", "keep_layers", "on_host", "cached", "order", "frozen")
    placement = Placement(**{name: plan[name] for name in fields})
    settled = settle_microbatch(config, tokens_per_row)
    expected = formula_bytes(
        spec,
        with_strategy(spec, settled),
        placement,
        way=run["ways"][-1],
        redone=False,
        microbatches=run["microbatches"],
    )
    measured = run["link_bytes"]
    gpu = config.device == "cuda"
    return {
        "strategy": config.strategy,
        "system": STRATEGIES[config.strategy].system,
        "rule": STRATEGIES[config.strategy].rule,
        "tiers": {tier: placement.tiers.count(tier) for tier in set(placement.tiers)},
        "way": run["ways"][-1],
        "order": placement.order,
        "step_seconds": run["step_seconds"],
        "planned_seconds": run["planned_seconds"],
        "commit_seconds": run["commit_seconds"],
        "link_bytes": measured,
        "formula_bytes": expected,
        "worst_share": max(_off(measured[link], wanted) for link, wanted in expected.items()),
        "digest": run["digest"],
        "device_bytes": plan["total_device_bytes"],
        "host_bytes": plan["total_host_bytes"],
        "device_peak_bytes": torch.cuda.max_memory_allocated() if gpu else None,
        "rss_above_start_bytes": _resident_bytes("VmHWM") - before,
        "staging_bytes": plan["host_bytes"]["staging"],
        "common_staging_bytes": common_staging_bytes(spec),
    }


def digest(work: Workspace) -> Mapping[str, Any]:
    """SHA-256 of every component of every record as committed, padding left out."""
    found = hashlib.sha256()
    with work.staging.borrow() as staging:
        for name, record in sorted(work.records.items()):
            work.store.read_into(name, staging.slot).result()
            for tensor in record.tensors:
                start = record.offset(tensor.name)
                found.update(staging.slot.view[start : start + tensor.payload_bytes])
    return {"digest": found.hexdigest()}


def _off(measured: float, wanted: float) -> float:
    return abs(measured - wanted) / max(wanted, 1.0)


def _reset_peaks(config: TrainConfig) -> None:
    if config.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    Path("/proc/self/clear_refs").write_text("5")  # the kernel's own peak begins anew


def _resident_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))
