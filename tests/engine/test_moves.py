"""One record elsewhere: what is asked for is kept, all of it fits, and no step gets longer."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from headrace.engine import TrainConfig, shape_spec
from headrace.engine.home_choices import repeat
from headrace.engine.homes import Placement, Tier
from headrace.engine.moves import neighbours, settled
from headrace.engine.rates import VolumeRates, default_rates
from headrace.engine.sizes import Sizes
from headrace.engine.step_cost import StepModel
from headrace.engine.step_load import StepLoad
from headrace.engine.weighing import Weighed

GIB = 2**30
SPEC = shape_spec("llama-8b-vocab-32k", 3)
COUNT = len(SPEC.records)
LAYERS = SPEC.indices["layer"]
# Weights, gradients and activations on the device: only updates pass the ring, behind backward.
BOUND_BY_A_DRIVE = Placement(
    tiers=repeat("nvme", COUNT), num_slots=2, keep_layers=tuple(range(len(LAYERS))),
    keep_grads=True, grad_tier="device", cached=tuple(range(COUNT)),
)  # fmt: skip
MIXED: tuple[Tier, ...] = ("nvme", *repeat("host", COUNT - 2), "device")


def sizes_of(**settings: Any) -> Sizes:
    given: dict[str, Any] = {
        "model": "m", "dataset": "d", "device": "cuda", "compute_dtype": "bfloat16",
        "batch_rows": 4, "microbatch_rows": 2, "packing": "off", "loss_chunk_tokens": 1024,
    }  # fmt: skip
    return Sizes.of(SPEC, TrainConfig(**(given | settings)), 1024)


def test_each_record_moves_to_each_tier_and_trades_with_each_other() -> None:
    sizes = sizes_of()
    found = {one.tiers for one in neighbours(sizes, Placement(tiers=MIXED, num_slots=2), 24 * GIB)}
    moves = {
        tuple(tier if j == i else home for j, home in enumerate(MIXED))
        for i in range(COUNT)
        for tier in ("device", "host", "nvme")
    }
    # The layer in the middle is like both of its neighbours, which stand for it.
    middle = LAYERS[1]
    assert found >= {tiers for tiers in moves if tiers[middle] == MIXED[middle]}
    assert ("device", *MIXED[1:-1], "nvme") in found


@pytest.mark.parametrize(
    "asked",
    [
        {"state_tier": "host"},
        {"clip_way": "speculative"},
        {"clip_way": "serial"},
        {"optimizer_device": "host"},
        {"grad_tier": "device"},
        {"recompute": "all"},
        {"num_slots": 4},
    ],
    ids=str,
)
def test_what_is_asked_for_stays(asked: dict[str, Any]) -> None:
    sizes = sizes_of(**asked)
    begun: tuple[Tier, ...] = repeat("host", COUNT) if "state_tier" in asked else MIXED
    placement = Placement(tiers=begun, num_slots=asked.get("num_slots", 2))
    found = list(neighbours(sizes, placement, 24 * GIB))
    assert found
    for one in found:
        there = tuple(i for i in LAYERS if one.tiers[i] == "host")
        assert set(one.on_host) <= set(there)
        assert one.num_slots == placement.num_slots
        if "state_tier" in asked:
            assert set(one.tiers) == {"host"}
        if asked.get("clip_way") == "speculative":
            assert one.host_versions == (2 if "host" in one.tiers else 1)
        if asked.get("clip_way") == "serial":
            assert one.host_versions == 1
        if "optimizer_device" in asked:
            assert one.on_host == there
        if "grad_tier" in asked:
            assert one.grad_tier == "device"
        if "recompute" in asked:
            assert not one.keep_layers


def test_it_fits_and_no_move_is_left_that_shortens_the_step() -> None:
    sizes = sizes_of()
    drives = default_rates("cuda").default_volume
    weighed = Weighed(StepModel(sizes, default_rates("cuda"), StepLoad.of(sizes)), drives)
    begun = Placement(tiers=repeat("nvme", COUNT), num_slots=2)
    limits = {"device_limit": 14 * GIB, "host_limit": 8 * GIB}
    search = {**limits, "about": weighed.by_formula, "seconds": weighed.played}
    seconds, found = settled(sizes, (weighed.played(begun, inf), begun), **search)  # type: ignore[arg-type]
    assert seconds == weighed.played(found, inf) < 0.8 * weighed.played(begun, inf)
    assert sizes.device(found) <= 14 * GIB and sizes.host(found) <= 8 * GIB
    assert settled(sizes, (seconds, found), **search) == (seconds, found)  # type: ignore[arg-type]


def test_a_strategy_keeps_its_rule() -> None:
    sizes = sizes_of(strategy="ratel")
    begun = Placement(tiers=repeat("nvme", COUNT), num_slots=2)
    found = settled(
        sizes, (1.0, begun), device_limit=2**60, host_limit=2**60,
        about=lambda one: float(one == begun), seconds=lambda one, _: float(one == begun),
    )  # fmt: skip
    assert found == (1.0, begun)


def test_weights_that_are_cached_are_left_where_they_are() -> None:
    sizes = sizes_of()
    placed = Placement(tiers=repeat("nvme", COUNT), num_slots=2)
    assert not list(neighbours(sizes, replace(placed, cached=(0, 1)), 24 * GIB))


@pytest.mark.parametrize(
    ("settings", "slots"), [({}, 3), ({"num_slots": 2}, 2)], ids=["left to the plan", "asked for"]
)
def test_a_drive_that_is_slower_in_both_directions_at_once_still_gets_three_slots(
    settings: dict[str, Any], slots: int
) -> None:
    # Played at one pace, two slots are shorter by a hair here: they read and write in turn.
    drives = VolumeRates(read=1.8e9, write=2.6e9, mixed=1.98e9)
    sizes = sizes_of(state_tier="nvme", batch_rows=64, microbatch_rows=16, **settings)
    weighed = Weighed(StepModel(sizes, default_rates("cuda"), StepLoad.of(sizes)), drives)
    begun = BOUND_BY_A_DRIVE
    three = weighed.played(replace(begun, num_slots=3))
    assert weighed.played(begun) < three < 1.02 * weighed.played(begun)
    limits = {"device_limit": sizes.device(replace(begun, num_slots=3)), "host_limit": 64 * GIB}
    seconds, found = weighed.fastest([begun], **limits)
    assert found.num_slots == slots
    assert seconds == weighed.played(found)


def test_where_three_slots_do_not_fit_two_stay() -> None:
    drives = VolumeRates(read=1.8e9, write=2.6e9, mixed=1.98e9)
    sizes = sizes_of(state_tier="nvme", batch_rows=64, microbatch_rows=16)
    weighed = Weighed(StepModel(sizes, default_rates("cuda"), StepLoad.of(sizes)), drives)
    begun = BOUND_BY_A_DRIVE
    for limits in (
        {"device_limit": sizes.device(begun), "host_limit": 64 * GIB},
        {"device_limit": 128 * GIB, "host_limit": sizes.host(begun)},
    ):
        assert weighed.fastest([begun], **limits)[1].num_slots == 2


def test_slots_that_make_a_step_much_longer_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    drives = VolumeRates(read=1.8e9, write=2.6e9, mixed=1.98e9)
    sizes = sizes_of(state_tier="nvme", batch_rows=64, microbatch_rows=16)
    weighed = Weighed(StepModel(sizes, default_rates("cuda"), StepLoad.of(sizes)), drives)
    played = weighed.played

    def longer_by_three(placement: Placement, limit: float = inf) -> float:
        slower = 1.05 if placement.num_slots == 3 else 1.0
        return slower * played(placement, limit)

    monkeypatch.setattr(weighed, "played", longer_by_three)
    found = weighed.fastest([BOUND_BY_A_DRIVE], device_limit=128 * GIB, host_limit=64 * GIB)
    assert found[1].num_slots == 2
