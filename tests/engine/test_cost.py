"""Predicted bytes are the formula's, and predicted seconds follow from bytes and rates."""

from dataclasses import replace
from typing import Any

import pytest

from headrace.engine import Box, TrainConfig, make_plan, method_spec, shape_spec
from headrace.engine.cost import planned_visits
from headrace.engine.homes import Placement
from headrace.engine.rates import LayerRate, Rates, VolumeRates
from headrace.engine.state_record import converted_elements
from headrace.engine.step_cost import StepModel
from headrace.engine.step_load import StepLoad

SPEC = shape_spec("llama3-70b")
N = SPEC.num_params
LAYERS = sum(record.num_params for record in SPEC.of_kind("layer"))
RATES = Rates(
    origin="described",
    h2d=50e9,
    d2h=50e9,
    host_memory=200e9,
    device_memory=1e18,  # so that operations and bytes alone count
    layers=(LayerRate(tokens=4096, forward_flops=600e12, backward_flops=600e12),),
    default_volume=VolumeRates(read=24e9, write=16e9),
    volumes={"/d": VolumeRates(read=24e9, write=16e9)},
)
BOX = Box(
    device="cuda", device_bytes=900 * 10**9, host_bytes=64 * 10**9, volumes={"/d": 4 * 10**12},
    rates=RATES,
)  # fmt: skip


def config(**settings: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "model": "m", "dataset": "d", "device": "cuda", "compute_dtype": "bfloat16",
        "batch_rows": 16, "microbatch_rows": 1, "clip_mode": "per_layer", "state_tier": "nvme",
        "loss_chunk_tokens": 4096, "recompute": "all",
    }  # fmt: skip
    return TrainConfig(**(given | settings))


def forecast(box: Box = BOX, **settings: Any):  # type: ignore[no-untyped-def]
    return make_plan(SPEC, config(**settings), longest_row_tokens=4096, box=box).forecast


def test_a_step_reads_14_and_writes_12_bytes_a_parameter() -> None:
    moved = forecast().step.link_bytes
    assert moved["nvme_read"] == pytest.approx(14 * N, rel=0.02)
    assert moved["nvme_write"] == pytest.approx(12 * N, rel=0.02)


def test_a_step_that_waits_for_the_drive_takes_its_bytes_over_its_rate() -> None:
    found = forecast(batch_rows=4)
    assert found.bottleneck == "drive"
    assert found.step.seconds == pytest.approx(14 * N / 24e9 + 12 * N / 16e9, rel=0.03)


def test_a_step_that_waits_for_compute_takes_its_operations_over_their_rate() -> None:
    """8 N T without attention: forward, recompute and both gradients."""
    found = forecast(batch_rows=128)
    assert found.bottleneck == "compute"
    tokens = 128 * 4096
    attention = 4 * 2 * 4096 * SPEC.hidden_size * SPEC.num_layers
    head = 2 * SPEC.vocab_size * SPEC.hidden_size  # its part is 6, not 8
    expected = tokens * (8 * LAYERS + attention + 3 * head) / 600e12
    assert found.step.seconds == pytest.approx(expected, rel=0.03)


def test_tokens_needed_are_those_of_the_reference_formula() -> None:
    """T* = F/8 (b_r/R + b_w/W): 100 thousand tokens for the exact format on 24 / 16 GB/s."""
    needed = forecast().step_tokens_needed["drive"]
    assert needed == pytest.approx(600e12 / 8 * (14 / 24e9 + 12 / 16e9), rel=0.08)


def test_tokens_needed_do_not_depend_on_depth_or_on_the_tokens_of_the_plan() -> None:
    few, many = (forecast(batch_rows=rows).step_tokens_needed["drive"] for rows in (4, 64))
    assert few == pytest.approx(many, rel=0.01)
    spec = shape_spec("llama3-70b", layers=40)
    plan = make_plan(spec, config(), longest_row_tokens=4096, box=BOX)
    assert plan.forecast.step_tokens_needed["drive"] == pytest.approx(many, rel=0.05)


def test_the_condition_of_a_pass_is_its_own() -> None:
    """Forward needs F/R tokens; a kept layer needs more in backward, since it computes less."""
    forward, turning, backward = forecast().conditions
    assert (forward.phase, turning.phase, backward.phase) == ("forward", "backward", "backward")
    assert turning.num_layers == 1  # it is still there from the forward pass
    assert turning.tokens_needed < backward.tokens_needed
    attention = 1 + 2 * 4096 * SPEC.hidden_size * SPEC.num_layers / (2 * LAYERS)
    assert forward.tokens_needed == pytest.approx(600e12 / 24e9 / attention, rel=0.02)
    by_bytes = 600e12 / 6 * (12 / 24e9 + 12 / 16e9) / attention
    assert backward.tokens_needed == pytest.approx(by_bytes, rel=0.02)
    assert forward.holds == (forward.tokens_needed <= 16 * 4096)
    assert backward.holds == (backward.tokens_needed <= 16 * 4096)


def test_an_update_after_the_norm_is_hidden_by_no_number_of_tokens() -> None:
    box = replace(BOX, host_bytes=400 * 10**9)
    found = forecast(box=box, clip_mode="exact", clip_way="serial")
    assert [one.tokens_needed for one in found.conditions if one.phase == "optimizer"] == [None]


def test_a_slower_link_shows_in_the_plan() -> None:
    slow = replace(BOX, rates=replace(RATES, h2d=2e9))
    found = forecast(box=slow)
    assert found.bottleneck == "h2d" and found.next_bottleneck == "drive"
    assert "bound by the link to the device" in found.sentence


def test_two_drives_of_unequal_speed_take_parts_of_their_own() -> None:
    fast, slow = VolumeRates(read=6e9, write=4e9), VolumeRates(read=3e9, write=2e9)
    known = replace(RATES, volumes={"/a": fast, "/b": slow}).drives(["/a", "/b"])
    assert known.read == pytest.approx(9e9) and known.write == pytest.approx(6e9)
    unknown = replace(RATES, volumes={"/a": fast}, default_volume=slow).drives(["/a", "/b"])
    assert unknown.read == pytest.approx(6e9)  # equal parts: both wait for the slow one


def test_rates_survive_a_trip_through_json() -> None:
    import json
    from dataclasses import asdict

    again = Box.from_dict(json.loads(json.dumps(asdict(BOX))))
    assert again.rates == RATES


def test_steps_that_follow_at_once_begin_with_what_was_read_ahead() -> None:
    """All state in host memory: with a commit after each, a step begins with an empty ring."""
    roomy = replace(BOX, host_bytes=2000 * 10**9)
    settings: dict[str, Any] = {
        "state_tier": "host", "clip_mode": "exact", "num_slots": 8, "batch_rows": 2,
        "optimizer_device": "device",
    }  # fmt: skip
    alone = forecast(box=roomy, clip_way="speculative", **settings).step
    within = forecast(box=roomy, clip_way="speculative", commit_every_steps=100, **settings).step
    assert within.link_bytes == alone.link_bytes
    link = max(within.link_bytes["h2d"], within.link_bytes["d2h"]) / 50e9
    assert link <= within.seconds < alone.seconds
    assert within.seconds == pytest.approx(link, rel=0.02)  # the link rests at no time


def test_a_drive_is_read_only_within_its_step() -> None:
    settings: dict[str, Any] = {"clip_mode": "none", "batch_rows": 4}
    alone = forecast(**settings).step.seconds
    assert forecast(clip_way="serial", **settings).step.seconds == pytest.approx(alone, rel=0.02)


def test_weights_in_a_cache_are_joined_for_each_pass_like_those_that_come_over_a_link() -> None:
    rates = replace(RATES, work={"join": 1e6}, visit_seconds=0.0)
    box = replace(BOX, device="cpu", rates=rates)
    given = config(
        device="cpu", compute_dtype="float32", strategy="zero_offload", clip_mode="exact",
        state_tier="auto",
    )  # fmt: skip
    plan = make_plan(shape_spec("tiny", 4), given, longest_row_tokens=128, box=box)
    cached = replace(plan.basis.placement, num_slots=3)  # so that one is held at the turn
    assert cached.cached
    model = StepModel(plan.basis.sizes, rates, StepLoad.of(plan.basis.sizes))

    def joined(placement: Placement) -> list[tuple[str, int, float]]:
        visits = planned_visits(model, placement, "serial")
        costs = model.visits(placement, visits)
        return [
            (visit.action, visit.record, cost.costs[2])
            for visit, cost in zip(visits, costs, strict=True)
            if visit.phase in ("forward", "backward")
        ]

    assert joined(cached) == joined(replace(cached, cached=()))
    layers = plan.basis.sizes.spec.indices["layer"]
    size = plan.basis.sizes.spec.records[layers[0]].num_elements
    passes = [(action, seconds) for action, record, seconds in joined(cached) if record in layers]
    assert len(passes) == 2 * len(layers)
    kept = len(cached.keep_layers)
    assert sum(seconds >= size / 1e6 for _, seconds in passes) == len(passes) - kept


def test_of_a_coded_base_the_layers_alone_are_decoded() -> None:
    spec = method_spec(shape_spec("tiny", 4), config(method="lora", frozen_format="nf4"))
    found = {
        record.kind: converted_elements(record, "bfloat16") / record.num_elements
        for record in spec.records
    }
    assert 0.9 < found.pop("layer") < 1
    assert set(found.values()) == {0.0}
    assert all(converted_elements(one, "float32") == one.num_elements for one in spec.records)
