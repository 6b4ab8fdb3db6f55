"""The formula from counts of records is the one from every visit of a step."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine import ModelSpec, TrainConfig, method_spec, shape_spec
from headrace.engine.additions import needs_kept_grads
from headrace.engine.cost import busy_seconds, goes_straight_on, host_wait, planned_visits
from headrace.engine.formula import StepFormula, read_ahead_seconds, reads_ahead
from headrace.engine.home_choices import with_what_lies_beside
from headrace.engine.homes import Placement, Tier, Way
from headrace.engine.orders import last_record
from headrace.engine.rates import VolumeRates, default_rates
from headrace.engine.sizes import Sizes
from headrace.engine.step_cost import StepModel
from headrace.engine.step_load import StepLoad
from headrace.engine.ways import planned_way

SPEC = shape_spec("llama3-8b", 5)
DRIVES = VolumeRates(read=5e9, write=4e9)
TIERS: tuple[Tier, ...] = ("device", "host", "nvme")
RUNS: list[dict[str, Any]] = [
    {},
    {"commit_every_steps": 100},
    {"clip_way": "deferred", "commit_every_steps": 3},
    {"clip_way": "serial"},
    {"clip_mode": "per_layer"},
    {"freeze": ("*embed*", "*layers.0.*", "*layers.1.*")},
    {"method": "lora"},
    {"device": "cpu", "compute_dtype": "float32"},
]


def by_visits(model: StepModel, placement: Placement, way: Way) -> float:
    """Every visit looked at, one after the other."""
    visits = planned_visits(model, placement, way)
    costs = model.visits(placement, visits)
    busy: dict[Any, Mapping[str, float]] = {}
    for phase in ("forward", "backward", "optimizer"):
        columns = [cost.costs for cost in costs if cost.phase == phase] or [(0.0,) * 5]
        sums = [sum(column) for column in zip(*columns, strict=True)]
        busy[phase] = busy_seconds(sums, DRIVES, model.rates)
    if reads_ahead(model, placement, way):
        forward, backward = read_ahead_seconds(model, placement, busy)
        spans: dict[Any, float] = {"forward": forward, "backward": backward}
        return forward + backward + host_wait(visits, costs, spans, straight_on=True)
    ends = 0.0
    for cost in (costs[0], costs[-1]):
        read, up, _, down, written = cost.costs
        ends += read / DRIVES.read + up / model.rates.h2d
        ends += down / model.rates.d2h + written / DRIVES.write
    spans = {phase: max(one.values()) for phase, one in busy.items()}
    wait = host_wait(visits, costs, spans, straight_on=goes_straight_on(model.config))
    return sum(spans.values()) + ends + wait


def placements(spec: ModelSpec, run: TrainConfig) -> st.SearchStrategy[Placement]:
    beside = len(spec.of_kind("beside"))
    count = len(spec.records) - beside
    frozen = tuple(i for i, record in enumerate(spec.records) if record.base is not None)

    def placed(tiers: list[Tier], choices: list[bool], cache: bool, **others: Any) -> Placement:
        homes = with_what_lies_beside(spec, tiers)
        there = [
            i for i in spec.indices["layer"] if homes[i] == "host" and spec.records[i].base is None
        ]
        # Weights are cached where nothing is in host memory: what the plan weighs.
        far = tuple(i for i, tier in enumerate(homes) if tier == "nvme")
        alone = "host" not in homes and not frozen and cache
        return Placement(
            tiers=homes,
            on_host=tuple(i for i, taken in zip(there, choices, strict=False) if taken),
            keep_grads=needs_kept_grads(spec, run, homes),
            cached=far if alone else (),
            frozen=frozen,
            **others,
        )

    layers = spec.num_layers
    inputs = st.lists(st.sampled_from(TIERS), min_size=layers, max_size=layers).map(tuple)
    return st.builds(
        placed,
        st.lists(st.sampled_from(TIERS), min_size=count, max_size=count),
        st.lists(st.booleans(), min_size=layers, max_size=layers),
        st.booleans(),
        num_slots=st.integers(2, 5),
        keep_layers=st.integers(0, layers).map(lambda kept: tuple(range(layers - kept, layers))),
        activation_tiers=inputs,
        grad_tier=st.sampled_from(("device", "host")),
        host_versions=st.sampled_from((1, 2)),
    )


@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(map(str, run.values())))
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_counts_of_records_give_what_every_visit_gives(
    run: dict[str, Any], data: st.DataObject
) -> None:
    common: dict[str, Any] = {"device": "cuda", "compute_dtype": "bfloat16"}
    given_run = TrainConfig(model="m", dataset="d", batch_rows=4, **(common | run))
    spec = method_spec(SPEC, given_run)
    sizes = Sizes.of(spec, given_run, 512)
    model = StepModel(sizes, default_rates(given_run.device), StepLoad.of(sizes))
    formula = StepFormula(model, DRIVES)
    for _ in range(3):  # what has been met before is not summed again
        placement = data.draw(placements(spec, given_run))
        way = planned_way(given_run, placement)
        visits = planned_visits(model, placement, way)
        assert last_record(spec, placement, way, placement.early(way)) == visits[-1].record
        assert formula.seconds(placement, way) == pytest.approx(by_visits(model, placement, way))
