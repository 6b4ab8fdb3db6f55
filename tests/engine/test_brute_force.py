"""The search against one that leaves nothing out, on a model small enough for that."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from headrace.engine import Box, CannotFit, TrainConfig, make_plan, shape_spec
from headrace.engine.additions import needs_kept_grads
from headrace.engine.cost import step_seconds
from headrace.engine.homes import NearTier, Placement, Tier
from headrace.engine.rates import LayerRate, Rates, VolumeRates
from headrace.engine.sizes import Sizes
from headrace.engine.step_cost import StepModel
from headrace.engine.step_load import StepLoad
from headrace.engine.strategies import STRATEGIES
from headrace.engine.ways import planned_way

SPEC = shape_spec("llama-8b-vocab-32k", 2)
LAYERS = [i for i, record in enumerate(SPEC.records) if record.kind == "layer"]
GIB = 2**30
WITHIN = 0.05
BUDGETS_IN_HALF_GIB = range(20, 39)  # 9788 MiB is the least; with 19 GiB every layer is kept whole
TIERS: tuple[Tier, ...] = ("device", "host", "nvme")
NEAR: tuple[NearTier, ...] = ("device", "host")
RATES = Rates(
    origin="described",
    h2d=20e9,
    d2h=20e9,
    both=16e9,
    host_memory=100e9,
    device_memory=2e12,
    layers=(LayerRate(tokens=4096, forward_flops=300e12, backward_flops=300e12),),
    work={"host_update": 3e9},
    default_volume=VolumeRates(read=6e9, write=4e9),
)


def box(device_gib: float, host_gib: float) -> Box:
    return Box(
        device="cuda", device_bytes=int(device_gib * GIB), host_bytes=int(host_gib * GIB),
        volumes={"/d": 2**40}, rates=RATES,
    )  # fmt: skip


def config(**settings: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "model": "m", "dataset": "d", "device": "cuda", "compute_dtype": "bfloat16",
        "batch_rows": 4, "microbatch_rows": 2, "packing": "off", "loss_chunk_tokens": 1024,
    }  # fmt: skip
    return TrainConfig(**(given | settings))


def subsets(items: list[int]) -> Iterator[tuple[int, ...]]:
    for chosen in product((False, True), repeat=len(items)):
        yield tuple(item for item, taken in zip(items, chosen, strict=True) if taken)


def all_placements(run: TrainConfig) -> Iterator[Placement]:
    """Every home of each record, every set of kept layers and of layers that the processor
    updates, and the other choices that a run has by itself. The norm, which is nothing, lives where
    the last record does."""
    count = len(SPEC.records)
    for homes in product(TIERS, repeat=count - 1):
        norm = [record.kind for record in SPEC.records].index("norm")
        tiers = (*homes[:norm], homes[-1], *homes[norm:])
        there = [i for i in LAYERS if tiers[i] == "host"]
        versions = (1, 2) if "host" in tiers else (1,)
        for keep, on_host, grads, num_versions in product(
            subsets([0, 1]), subsets(there), NEAR, versions
        ):
            yield Placement(
                tiers=tiers,
                num_slots=2,
                keep_layers=keep,
                on_host=on_host,
                grad_tier=grads,
                host_versions=num_versions,
                keep_grads=needs_kept_grads(SPEC, run, tiers),
            )


@pytest.mark.parametrize(("commit_every_steps", "host_gib"), [(1, 18), (1, 9), (100, 20), (100, 9)])
def test_the_plan_is_as_good_as_the_best_of_all_placements(
    commit_every_steps: int, host_gib: float
) -> None:
    """At every half GiB of device memory from the least that runs to all of the state in it, with
    as much host memory as the rest takes, and with so little that some of it is on NVMe."""
    run = config(commit_every_steps=commit_every_steps)
    boxes = [box(half / 2, host_gib) for half in BUDGETS_IN_HALF_GIB]
    chosen = [
        make_plan(SPEC, run, longest_row_tokens=1024, box=one).forecast.step.seconds
        for one in boxes
    ]
    sizes, drives = Sizes.of(SPEC, run, 1024), RATES.drives(["/d"])
    model = StepModel(sizes, RATES, StepLoad.of(sizes))
    num_fitting = 0
    for one in all_placements(run):
        first = bisect_left([where.device_bytes for where in boxes], sizes.device(one))
        if sizes.host(one) > boxes[0].host_bytes or first == len(boxes):
            continue
        num_fitting += 1
        longest = max(chosen[first:]) / (1 + WITHIN)  # played no further than it may be better
        seconds = step_seconds(model, one, planned_way(run, one), drives, limit=longest)
        for where, taken in zip(boxes[first:], chosen[first:], strict=True):
            assert taken <= (1 + WITHIN) * seconds, (where.device_bytes / GIB, taken / seconds, one)
    assert num_fitting > 1000


@pytest.mark.parametrize(
    ("device_gib", "host_gib", "settings"),
    [
        (24, 24, {}),
        (13, 24, {"commit_every_steps": 100}),
        (10, 24, {"commit_every_steps": 100}),
        (12, 10, {}),
        (24, 12, {"batch_rows": 16, "state_tier": "nvme"}),
    ],
)
def test_auto_is_as_good_as_the_best_strategy(
    device_gib: float, host_gib: float, settings: dict[str, Any]
) -> None:
    where, seconds = box(device_gib, host_gib), {}
    for name in STRATEGIES:
        try:
            run = replace(config(**settings), strategy=name)
            plan = make_plan(SPEC, run, longest_row_tokens=1024, box=where)
        except (CannotFit, ValueError):
            continue
        seconds[name] = min(plan.forecast.ways.values())
    assert len(seconds) > 2
    assert seconds["auto"] <= (1 + WITHIN) * min(seconds.values())


@pytest.mark.parametrize("settings", [{}, {"commit_every_steps": 100}, {"batch_rows": 16}])
def test_more_device_memory_never_makes_a_step_longer(settings: dict[str, Any]) -> None:
    spec, best = shape_spec("llama-8b-vocab-32k", 6), float("inf")
    for device_gib in (10.5, 11, 12, 13, 14, 16, 18, 20, 24, 30, 40):
        where = box(device_gib, 52)
        plan = make_plan(spec, config(**settings), longest_row_tokens=1024, box=where)
        assert plan.forecast.step.seconds <= 1.01 * best, device_gib
        best = min(best, plan.forecast.step.seconds)
