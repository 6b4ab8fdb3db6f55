"""The plan gives the processor the share of updates that makes the step shortest."""

from dataclasses import replace
from typing import Any

import pytest

from headrace.engine import Box, Plan, TrainConfig, make_plan, shape_spec
from headrace.engine.cost import host_wait
from headrace.engine.homes import Tier, early_records
from headrace.engine.rates import LayerRate, Rates, VolumeRates, Work
from headrace.engine.step_cost import VisitCost
from headrace.engine.visits import (
    Action,
    Phase,
    Visit,
    host_update_visit,
    pending_visits,
    step_visits,
)

SPEC = shape_spec("llama-8b-vocab-32k", 12)
LAYERS = [i for i, record in enumerate(SPEC.records) if record.kind == "layer"]


def _plan(*, host_rate: float, **settings: Any) -> Plan:
    """Twelve layers, all state in host memory, on a link of 50 GB/s."""
    work: dict[Work, float] = {"host_update": host_rate}
    rates = Rates(
        origin="described",
        h2d=50e9,
        d2h=50e9,
        host_memory=150e9,
        device_memory=3e12,
        layers=(LayerRate(tokens=4096, forward_flops=550e12, backward_flops=550e12),),
        work=work,
        default_volume=VolumeRates(read=5e9, write=4e9),
    )
    box = Box(
        device="cuda",
        device_bytes=130 * 2**30,
        host_bytes=115 * 2**30,
        volumes={"/d": 2**42},
        rates=rates,
    )
    given: dict[str, Any] = {
        "model": "m", "dataset": "d", "device": "cuda", "compute_dtype": "bfloat16",
        "batch_rows": 16, "microbatch_rows": 4, "state_tier": "host", "loss_chunk_tokens": 4096,
        "clip_way": "serial", "commit_every_steps": 1000, "compile": "static",
    }  # fmt: skip
    return make_plan(SPEC, TrainConfig(**(given | settings)), longest_row_tokens=1024, box=box)


def test_link_and_processor_together_beat_either_alone() -> None:
    seconds = {
        device: _plan(host_rate=4e9, optimizer_device=device).forecast.step.seconds
        for device in ("device", "host", "auto")
    }
    assert seconds["auto"] < 0.95 * min(seconds["device"], seconds["host"])
    assert 0 < len(_plan(host_rate=4e9).on_host) < len(LAYERS)


def test_a_slow_processor_updates_nothing_and_a_fast_one_everything() -> None:
    assert _plan(host_rate=1e6).on_host == ()
    assert _plan(host_rate=1e12).on_host == tuple(LAYERS)


def test_compact_formats_are_left_to_the_gpu_unless_the_run_says_so() -> None:
    """The measured rate is that of the exact format; the others' update is not compiled."""
    assert _plan(host_rate=1e12, state_format="q8").on_host == ()
    asked = _plan(host_rate=1e12, state_format="q8", optimizer_device="host")
    assert asked.on_host == tuple(LAYERS)


def test_a_share_that_is_asked_for_is_kept_and_takes_the_last_layers() -> None:
    assert _plan(host_rate=4e9, optimizer_host_share=0.25).on_host == tuple(LAYERS[-3:])
    assert _plan(host_rate=4e9, optimizer_device="host").on_host == tuple(LAYERS)


def test_state_of_what_the_processor_updates_crosses_no_link() -> None:
    """bf16: 26 bytes a parameter less, of 30 with recompute left out (2 up in forward)."""
    moved = {
        share: _plan(host_rate=4e9, optimizer_host_share=share, num_slots=2).link_bytes["serial"]
        for share in (0.0, 1.0)
    }
    layers = sum(SPEC.records[i].num_elements for i in LAYERS)
    assert moved[0.0]["h2d"] - moved[1.0]["h2d"] == 12 * layers
    assert moved[0.0]["d2h"] - moved[1.0]["d2h"] == 12 * layers


def test_gradients_of_what_the_processor_updates_wait_in_host_memory() -> None:
    plan = _plan(host_rate=4e9, optimizer_device="host")
    layers = sum(SPEC.records[i].num_elements for i in LAYERS)
    assert plan.host_bytes["gradients"] >= 2 * layers


@pytest.mark.parametrize("way", ["serial", "deferred", "speculative"])
def test_every_record_is_updated_once_by_one_of_the_two(way: Any) -> None:
    host: Tier = "host"
    tiers = [host] * len(SPEC.records)
    on_host = LAYERS[4:]
    visits = step_visits(
        SPEC,
        tiers,
        (),
        way,
        pending=way == "deferred",
        num_slots=3,
        on_host=on_host,
        early_records=early_records(tiers, 2, way),
    )
    by_device = [visit.record for visit in visits if visit.writes]
    by_processor = [visit.record for visit in visits if visit.on_host]
    early = way == "speculative"
    assert by_processor == (on_host[::-1] if early else on_host)
    phases = {visit.phase for visit in visits if visit.on_host}
    assert phases == {"backward" if early else "optimizer"}
    assert sorted(by_device + by_processor) == list(range(len(SPEC.records)))
    assert not [visit for visit in visits if visit.record in on_host and visit.pending]
    owed = [visit.record for visit in pending_visits(SPEC, on_host)]
    assert owed == [i for i in range(len(SPEC.records)) if i not in on_host]


def test_forward_waits_for_what_the_processor_has_not_reached() -> None:
    """Ten records in forward; those of the last two take 3 s each after the norm."""
    forward = [
        Visit(record=i, action="forward", reads="weights", writes=False, phase="forward")
        for i in range(10)
    ]
    visits = [*forward, host_update_visit(8), host_update_visit(9)]
    costs = [
        VisitCost(phase=visit.phase, costs=(0,) * 5, bytes=(0,) * 4, host_seconds=3 * visit.on_host)
        for visit in visits
    ]
    # Wanted at 8 and 9 tenths of a forward of 5 s, after an optimizer phase of 1 s.
    spans: dict[Phase, float] = {"forward": 5.0, "optimizer": 1.0}
    assert host_wait(visits, costs, spans, straight_on=True) == pytest.approx(max(3 - 5.0, 6 - 5.5))
    assert host_wait(visits, costs, spans | {"forward": 10.0}, straight_on=True) == 0


def test_updates_that_begin_in_backward_are_over_when_it_is_but_for_the_last() -> None:
    """Four layers, the last and the first but one updated as their gradients come, 3 s each."""

    def pass_over(phase: Phase, records: list[int]) -> list[Visit]:
        action: Action = "forward" if phase == "forward" else "backward"
        return [
            Visit(record=i, action=action, reads="weights", writes=False, phase=phase)
            for i in records
        ]

    backward = pass_over("backward", [3, 2, 1, 0])
    early = [host_update_visit(i, phase="backward") for i in (3, 1)]
    backward = [backward[0], early[0], *backward[1:3], early[1], backward[3]]
    visits = [*pass_over("forward", [0, 1, 2, 3]), *backward]
    costs = [
        VisitCost(phase=visit.phase, costs=(0,) * 5, bytes=(0,) * 4, host_seconds=3 * visit.on_host)
        for visit in visits
    ]
    # They come 5 and 2 sixths of backward before its end; record 1 is wanted at a quarter.
    assert host_wait(visits, costs, {"forward": 4.0, "backward": 12.0}, straight_on=True) == 0
    waited = host_wait(visits, costs, {"forward": 4.0, "backward": 6.0}, straight_on=True)
    assert waited == pytest.approx(-2 + 3 - 1)
    assert host_wait(visits, costs, {"forward": 1.0, "backward": 1.0}, straight_on=True) > 4


def test_a_commit_waits_for_all_that_the_processor_updates() -> None:
    forward = Visit(record=8, action="forward", reads="weights", writes=False, phase="forward")
    last = [host_update_visit(8), host_update_visit(9)]
    visits = [forward, replace(forward, record=9), *last]
    costs = [
        VisitCost(phase=visit.phase, costs=(0,) * 5, bytes=(0,) * 4, host_seconds=3 * visit.on_host)
        for visit in visits
    ]
    spans: dict[Phase, float] = {"forward": 10.0, "optimizer": 1.0}
    assert host_wait(visits, costs, spans, straight_on=True) == 3 - 1
    assert host_wait(visits, costs, spans, straight_on=False) == 6 - 1


def test_guessing_with_a_share_of_the_processor_is_chosen_where_it_is_shortest() -> None:
    """Though the formula, which knows nothing of the fill, takes deferred updates for shorter."""
    auto = _plan(host_rate=4e9, clip_way="auto")
    assert auto.host_versions == 2 and 0 < len(auto.on_host) < len(LAYERS)
    deferred = _plan(host_rate=4e9, clip_way="deferred").forecast.step.seconds
    assert auto.forecast.step.seconds < 0.95 * deferred
