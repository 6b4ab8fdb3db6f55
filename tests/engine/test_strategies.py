"""Each published system's way: the same bits as any other, and the bytes of its own formula."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datasets import write_dataset
from headrace.engine import (
    CannotFit,
    StrategyConflict,
    TrainConfig,
    make_plan,
    method_spec,
    nearest_fit,
    plan_report,
    read_model_spec,
    shape_spec,
)
from headrace.engine.capacity import Box
from headrace.engine.homes import Placement
from headrace.engine.plan import Plan
from headrace.engine.strategies import STRATEGIES, with_strategy
from headrace.engine.strategy_bytes import formula_bytes
from runs import Run, assert_same_state
from tiny import make_tiny_llama

MIB = 2**20
LENGTHS = [30, 30, 30, 30, 30, 30]  # of one length, so that a step has three microbatches
COMMON: dict[str, Any] = {"packing": "off", "microbatch_rows": 2, "state_tier": "auto"}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def origin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model, a data set, and the state of a plain run; clipping bites in every step."""
    folder = tmp_path_factory.mktemp("origin")
    model = make_tiny_llama(folder / "model", tied=request.param, seed=1, hidden=128, layers=6)
    dataset = write_dataset(folder / "data", LENGTHS, vocab=384)
    settings = {**COMMON, "state_tier": "nvme", "clip_way": "serial", "recompute": "all"}
    run = Run(folder / "plain", model, dataset, **settings)
    run.go()
    return model, dataset, run


def too_small(model: Path, config: TrainConfig) -> int:
    """A device budget that does not hold all of the state, by one layer and a half."""
    box = Box(device="cpu", device_bytes=2**40, host_bytes=2**40, volumes={"/d": 2**42})
    whole = make_plan(
        read_model_spec(model),
        replace(config, strategy="resident", clip_way="auto"),
        longest_row_tokens=30,
        box=box,
    )
    return whole.total_device_bytes - 3 * whole.slot_bytes // 2


PROOFS: list[tuple[str, dict[str, Any]]] = [
    ("resident", {}),
    ("zero_offload", {}),
    ("zero_offload", {"state_tier": "nvme"}),
    ("zero_offload", {"optimizer_host_share": 0.5}),
    ("zero_infinity", {}),
    ("megatrain", {}),
    ("teraio", {"clip_way": "serial", "recompute": "all"}),
    ("memascend", {}),
    ("ratel", {"recompute": "all"}),
    ("superoffload", {"recompute": "all", "grad_tier": "host"}),
    ("unified", {"clip_way": "serial", "recompute": "all", "grad_tier": "host"}),
]
PROVEN = {strategy for strategy, _ in PROOFS}


@pytest.mark.parametrize(
    ("strategy", "settings"),
    PROOFS,
    ids=lambda value: value if isinstance(value, str) else "-".join(f"{v}" for v in value.values()),
)
def test_a_strategy_changes_no_bit_and_moves_what_its_formula_says(
    origin: Any, tmp_path: Path, strategy: str, settings: dict[str, Any]
) -> None:
    model, dataset, plain = origin
    run = Run(tmp_path, model, dataset, **{**COMMON, "strategy": strategy, **settings})
    is_mixed = "device" in STRATEGIES[strategy].tiers and strategy != "resident"  # type: ignore[index]
    if is_mixed:
        run.config = replace(run.config, device_bytes=too_small(model, run.config))
    run.go()
    assert_same_state(run.state(), plain.state())
    (plan,) = [event.data for event in run.events if event.type == "plan"]
    fields = ("tiers", "num_slots", "keep_layers", "on_host", "cached", "order")
    placement = Placement(**{name: plan[name] for name in fields})
    assert set(placement.tiers) <= set(STRATEGIES[strategy].tiers)  # type: ignore[index]
    assert len(set(placement.tiers)) == 1 + is_mixed
    expected = formula_bytes(
        read_model_spec(model),
        with_strategy(read_model_spec(model), run.config),
        placement,
        way=plan["clip_way"],
        redone=plan["clip_way"] == "speculative",
        microbatches=3,
    )
    commits = {"device": 1, "host": 1, "nvme": 0}
    flushed = sum(
        12 * record.num_params * commits[tier]
        for record, tier in zip(read_model_spec(model).records, placement.tiers, strict=True)
    )
    resident = sum(
        12 * record.num_params
        for record, tier in zip(read_model_spec(model).records, placement.tiers, strict=True)
        if tier == "device"
    )
    step = run.metrics()[2]["links"]
    expected["nvme_write"] += flushed  # every step commits
    expected["d2h"] += resident
    for link, wanted in expected.items():
        assert step[link]["payload_bytes"] == pytest.approx(wanted, rel=0.02), link


def test_every_strategy_is_described_and_proven() -> None:
    """In this room's README and in the service's, and in the proof above."""
    root = Path(__file__).parents[2]
    text = root.joinpath("engine/README.md").read_text(encoding="utf-8")
    table = text.partition("\n## Strategies\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| `")]
    described = {row[0].split("`")[1]: [cell.strip() for cell in row[1:]] for row in rows}
    assert described.keys() == STRATEGIES.keys()
    assert all(len(cells) == 4 and all(cells) for cells in described.values())
    assert set(PROVEN) == STRATEGIES.keys() - {"auto"}
    service = root.joinpath("service/README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in service for name in STRATEGIES)


def test_cached_weights_beside_records_on_the_device_change_no_bit(
    origin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU with room for all weights and some of the state is planned."""
    model, dataset, plain = origin
    count = len(read_model_spec(model).records)
    far = tuple(range(count - 3))
    tiers: Any = ("nvme",) * len(far) + ("device",) * 3
    mixed = Placement(tiers=tiers, num_slots=3, cached=far)
    monkeypatch.setattr("headrace.engine.capacity.choose_placement", lambda *_, **__: mixed)
    run = Run(tmp_path, model, dataset, **COMMON)
    run.go()
    assert_same_state(run.state(), plain.state())
    (plan,) = [event.data for event in run.events if event.type == "plan"]
    assert plan["clip_way"] == "serial" and tuple(plan["cached"]) == far
    step = run.metrics()[2]["links"]
    params = sum(read_model_spec(model).records[i].num_params for i in far)
    assert step["nvme_read"]["payload_bytes"] == pytest.approx(12 * params, rel=0.02)


def test_room_on_a_gpu_keeps_the_weights_of_what_is_on_nvme() -> None:
    spec = shape_spec("llama-8b-vocab-32k", 2)
    config = TrainConfig(
        model="m", dataset="d", device="cuda", compute_dtype="bfloat16", state_tier="nvme",
        batch_rows=8, packing="off", clip_mode="exact",
    )  # fmt: skip
    box = Box(device="cuda", device_bytes=2**35, host_bytes=2**35, volumes={"/d": 2**40})
    others = (replace(config, clip_way="speculative"), replace(config, strategy="memascend"))
    plans = [make_plan(spec, run, longest_row_tokens=1024, box=box) for run in (config, *others)]
    assert [bool(one.cached) for one in plans] == [True, False, False]
    first, second = (one.forecast.step.seconds for one in plans[:2])
    assert first < second


BOX = Box(device="cpu", device_bytes=2**33, host_bytes=2**33, volumes={"/d": 2**40})


def plan(strategy: str, **settings: Any) -> Plan:
    config = TrainConfig(model="m", dataset="d", strategy=strategy, **settings)  # type: ignore[arg-type]
    spec = method_spec(shape_spec("smollm2-135m"), config)
    return make_plan(spec, config, longest_row_tokens=128, box=BOX)


def test_what_the_run_says_goes_before_what_its_strategy_says() -> None:
    assert plan("megatrain").num_slots == 2
    assert plan("megatrain", num_slots=5).num_slots == 5
    assert len(plan("ratel", recompute="none").keep_layers) == 30


@pytest.mark.parametrize(
    ("strategy", "settings", "said"),
    [
        ("megatrain", {"state_tier": "nvme"}, "keeps state on host, and state_tier is nvme"),
        ("zero_infinity", {"freeze": ("*.mlp.*",)}, "trains every weight"),
        ("zero_infinity", {"clip_way": "speculative"}, "when all gradients are known"),
        ("zero_offload", {"clip_way": "deferred"}, "when all gradients are known"),
        ("zero_infinity", {"recompute": "none"}, "recomputes every layer"),
        ("ratel", {"commit_every_steps": 10}, "it commits every step"),
        ("memascend", {"optimizer_device": "host"}, "no state in host memory"),
        ("ratel", {"optimizer_host_share": 0.5}, "no state in host memory"),
    ],
)
def test_what_a_strategy_could_not_follow_is_refused_rather_than_dropped(
    strategy: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(StrategyConflict, match=f"strategy {strategy} .*{said}"):
        plan(strategy, **settings)


def test_a_strategy_that_does_not_fit_is_refused_though_another_would() -> None:
    plan("auto", host_bytes=700 * MIB)
    with pytest.raises(CannotFit, match="by strategy megatrain needs .* of host memory"):
        plan("megatrain", host_bytes=700 * MIB)
    with pytest.raises(CannotFit) as late:
        plan("memascend", host_bytes=2**26, clip_mode="none")
    assert "keep no gradients" not in str(late.value)
    spec, config = shape_spec("smollm2-135m"), TrainConfig(model="m", dataset="d")
    config = replace(config, strategy="megatrain", host_bytes=700 * MIB)
    assert nearest_fit(spec, config, longest_row_tokens=128, box=BOX).alone["strategy"] == "auto"


def test_one_pass_of_updates_at_the_end_is_kept_to_though_the_factor_is_known() -> None:
    assert plan("auto", state_tier="nvme", clip_mode="none").clip_way == "speculative"
    assert plan("memascend", clip_mode="none").clip_way == "serial"
    assert plan("ratel", clip_mode="none").clip_way == "speculative"


def test_auto_is_named_as_a_change_that_would_help() -> None:
    spec = shape_spec("smollm2-135m")
    config = TrainConfig(model="m", dataset="d", strategy="zero_infinity", microbatch_rows=1)
    made = make_plan(spec, config, longest_row_tokens=128, box=BOX)
    found = plan_report(made, spec, config, longest_row_tokens=128, box=BOX)
    assert found["strategy"] == "zero_infinity"
    assert "strategy auto" in [change["change"] for change in found["changes"]]


def test_weights_that_stay_on_the_device_are_counted_there() -> None:
    cached, streamed = plan("zero_offload"), plan("megatrain", num_slots=3)
    extra = cached.device_bytes["cached_weights"]
    assert extra == pytest.approx(4 * shape_spec("smollm2-135m").num_params, rel=0.02)
    assert streamed.device_bytes["cached_weights"] == 0


def test_microbatches_one_by_one_read_the_weights_for_each() -> None:
    read = {
        rows: plan("zero_infinity", batch_rows=8, microbatch_rows=rows).link_bytes["serial"]
        for rows in (8, 2)
    }
    params = shape_spec("smollm2-135m").num_params
    per_param = {rows: moved["nvme_read"] / params for rows, moved in read.items()}
    assert per_param[2] - per_param[8] == pytest.approx(3 * (per_param[8] - 12), rel=0.02)
