"""Which records are the far ones: where the step is shortest, and never at the cost of a bit."""

from dataclasses import replace
from itertools import cycle, islice
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

from datasets import write_dataset
from headrace.engine import Box, TrainConfig, make_plan, shape_spec
from headrace.engine import capacity as capacity_module
from headrace.engine.cost import step_cost
from headrace.engine.home_choices import repeat
from headrace.engine.homes import Placement, Tier
from headrace.engine.host_share import asked_on_host
from headrace.engine.placement import choose_placement
from headrace.engine.rates import VolumeRates, default_rates
from headrace.engine.rearrange import rearranged
from headrace.engine.sizes import Sizes
from headrace.engine.step_cost import StepModel
from headrace.engine.step_load import StepLoad
from headrace.engine.ways import planned_way
from runs import Run, assert_same_state
from tiny import make_tiny_llama

GIB = 2**30
SPEC = shape_spec("llama-8b-vocab-32k", 24)
RATES = replace(default_rates("cuda"), work={"host_update": 3.8e9, "host_update_aside": 2.5e9})
LENGTHS = [9, 17, 5, 30, 12, 21, 8, 26, 14, 11]


def config(**settings: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "model": "m", "dataset": "d", "device": "cuda", "compute_dtype": "bfloat16",
        "batch_rows": 16, "microbatch_rows": 16, "loss_chunk_tokens": 4096,
        "commit_every_steps": 2**31, "compile": "static",
    }  # fmt: skip
    return TrainConfig(**(given | settings))


def test_what_lives_far_lies_between_what_is_near() -> None:
    """Host memory takes a part of the state: with all of it at one end of the order, what it needs
    last is waited for when backward has ended; nothing need be waited for."""
    box = Box(
        device="cuda", device_bytes=126 * GIB, host_bytes=108 * GIB, volumes={"/d": 2**63},
        rates=RATES,
    )  # fmt: skip
    plan = make_plan(SPEC, config(clip_way="speculative"), longest_row_tokens=1024, box=box)
    far_first = sorted(plan.tiers, key=["nvme", "host", "device"].index)
    assert "host" in plan.tiers and list(plan.tiers) != far_first
    step = plan.forecast.step
    assert step.seconds == pytest.approx(sum(p.busy_seconds["compute"] for p in step.phases), 0.01)


def test_no_bet_is_made_for_a_little() -> None:
    """Betting that no step is clipped would be hardly shorter, and a lost bet a fifth longer: a run
    that clips every step takes no longer than one that never does."""
    box = Box(
        device="cuda", device_bytes=126 * GIB, host_bytes=108 * GIB, volumes={"/d": 2**63},
        rates=RATES,
    )  # fmt: skip
    plan = make_plan(SPEC, config(), longest_row_tokens=1024, box=box)
    assert plan.host_versions == 1 and plan.clip_way == "deferred"
    guessing = make_plan(
        SPEC, config(clip_way="speculative"), longest_row_tokens=1024, box=box
    ).forecast
    assert guessing.step.seconds < plan.forecast.step.seconds < 1.03 * guessing.step.seconds


def test_what_fits_the_device_stays_there() -> None:
    """Updates of a layer by the processor would save less than a prediction is good for."""
    box = Box(
        device="cuda", device_bytes=126 * GIB, host_bytes=108 * GIB, volumes={"/d": 2**63},
        rates=RATES,
    )  # fmt: skip
    spec = shape_spec("llama-8b-vocab-32k", 12)
    plan = make_plan(spec, config(), longest_row_tokens=1024, box=box)
    assert set(plan.tiers) == {"device"}


def test_it_fits_and_is_never_slower_than_what_it_was_given() -> None:
    run = config(device_bytes=16 * GIB)
    sizes = Sizes.of(SPEC, run, 1024)
    model, drives = StepModel(sizes, RATES, StepLoad.of(sizes)), VolumeRates(read=5e9, write=4e9)

    def seconds(placement: Placement, limit: float = inf) -> float:
        return step_cost(model, placement, planned_way(run, placement), drives).seconds

    count = len(SPEC.records)
    for near, versions in ((3, 1), (3, 2), (12, 1), (count, 1), (0, 2)):
        tiers = (*repeat("host", count - near), *repeat("device", near))
        given = Placement(
            tiers=tiers, num_slots=3, on_host=(4, 6, 8) if near < 20 else (),
            host_versions=versions,
        )  # fmt: skip
        most, host = sizes.device(given), sizes.host(given)

        limits = {"device_limit": most, "host_limit": host}
        found_seconds, found = rearranged(sizes, given, **limits, about=seconds, seconds=seconds)
        assert sizes.device(found) <= most and sizes.host(found) <= host
        assert found_seconds == seconds(found) <= seconds(given)
        assert all(found.tiers[i] == "host" for i in found.on_host)
        assert all(SPEC.records[i].kind == "layer" for i in found.on_host)
        again = rearranged(sizes, given, **limits, about=seconds, seconds=seconds)
        assert again == (found_seconds, found)


def test_a_strategy_keeps_its_rule() -> None:
    run = config(strategy="superoffload")
    sizes = Sizes.of(SPEC, run, 1024)
    count = len(SPEC.records)
    tiers = (*repeat("host", count - 5), *repeat("device", 5))
    given = Placement(tiers=tiers, num_slots=3)
    found = rearranged(
        sizes,
        given,
        device_limit=2**60,
        host_limit=2**60,
        about=lambda one: float(one == given),
        seconds=lambda one, _: float(one == given),
    )
    assert found == (1.0, given)


@pytest.mark.parametrize("asked", [{"optimizer_device": "host"}, {"optimizer_host_share": 0.5}])
@pytest.mark.parametrize("versions", [1, 2])
def test_the_processor_updates_what_the_run_asks_for(asked: dict[str, Any], versions: int) -> None:
    run = config(**asked)
    sizes = Sizes.of(SPEC, run, 1024)
    count = len(SPEC.records)
    tiers = (*repeat("host", count - 5), *repeat("device", 5))
    on_host = asked_on_host(SPEC, run, tiers, host_versions=versions)
    given = Placement(tiers=tiers, num_slots=3, on_host=on_host, host_versions=versions)
    weighed: list[Placement] = []

    def about(placement: Placement) -> float:
        weighed.append(placement)
        return 1.0

    limits = {"device_limit": 2**60, "host_limit": 2**60}
    rearranged(sizes, given, **limits, about=about, seconds=lambda one, _: 1.0)
    assert any(one.tiers.count("host") > count - 5 for one in weighed), "homes of one layer more"
    for one in weighed:
        assert one.on_host == asked_on_host(SPEC, run, one.tiers, host_versions=versions)


PATTERNS: list[tuple[Tier, ...]] = [
    ("device", "host", "device", "nvme"),
    ("nvme", "device", "host"),
    ("host", "host", "device"),
    ("device", "device", "nvme", "nvme", "host"),
]
WAYS: list[dict[str, Any]] = [
    {"clip_way": "serial"},
    {"clip_way": "speculative"},
    {"clip_way": "deferred", "commit_every_steps": 3},
    {"clip_way": "serial", "commit_every_steps": 3, "recompute": "none", "num_slots": 5},
]
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
        ],
    ),
]


@pytest.fixture(scope="module", params=DEVICES)
def origin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model, a data set, and a run with all of its state on NVMe."""
    folder = tmp_path_factory.mktemp("origin")
    model = make_tiny_llama(folder / "model", tied=False, seed=1)
    dataset = write_dataset(folder / "data", LENGTHS, vocab=384)
    common = {"device": request.param, "max_grad_norm": 0.5, "optimizer_host_share": 0.5}
    run = Run(folder / "plain", model, dataset, **{**common, "optimizer_host_share": None})
    run.go()
    return model, dataset, common, run


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(map(str, way.values())))
@pytest.mark.parametrize("pattern", PATTERNS, ids="-".join)
def test_no_order_of_homes_changes_a_bit(
    origin: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pattern: tuple[Tier, ...],
    way: dict[str, Any],
) -> None:
    model, dataset, common, plain = origin
    used: list[Placement] = []

    def mixed(*args: Any, **kwargs: Any) -> Placement:
        chosen = choose_placement(*args, **kwargs)
        tiers = tuple(islice(cycle(pattern), len(chosen.tiers)))
        layers = [i for i, r in enumerate(args[1].spec.records) if r.kind == "layer"]
        on_host = tuple(i for i in layers if tiers[i] == "host")[:1]
        used.append(replace(chosen, tiers=tiers, on_host=on_host, keep_grads=True))
        return used[-1]

    monkeypatch.setattr(capacity_module, "choose_placement", mixed)
    run = Run(tmp_path, model, dataset, **{**common, **way, "state_tier": "auto"})
    run.go()
    assert set(used[-1].tiers) == set(pattern)
    assert [m["loss"] for m in run.metrics()] == [m["loss"] for m in plain.metrics()]
    assert_same_state(run.state(), plain.state())
