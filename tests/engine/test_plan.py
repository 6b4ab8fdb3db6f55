"""The planner counts before it promises, and refuses with numbers."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from headrace.engine import (
    Box,
    CannotFit,
    TrainConfig,
    fit_microbatch,
    make_plan,
    method_spec,
)
from headrace.engine.box import detect_box
from headrace.engine.config import StateFormat
from headrace.engine.homes import Way, early_records
from headrace.engine.shapes import shape_spec
from headrace.engine.state import state_record
from headrace.engine.visits import step_visits
from headrace.storage import NoSpace, TensorStore, VolumeConfig, VolumeRoom

MIB = 2**20
SPEC = shape_spec("smollm2-135m")
BOX = Box(device="cpu", device_bytes=8 * 2**30, host_bytes=8 * 2**30, volumes={"/drive": 2**40})


def _config(**settings: Any) -> TrainConfig:
    return TrainConfig(model="m", dataset="d", **{"batch_rows": 4, **settings})


def test_every_record_is_updated_once_in_each_way() -> None:
    nvme = ("nvme",) * len(SPEC.records)
    mixed = tuple("host" if i % 2 else "nvme" for i in range(len(SPEC.records)))
    for tiers in (nvme, mixed):
        for way in get_args(Way):
            for keep in ((), (28, 29)):
                visits = step_visits(
                    SPEC,
                    tiers,  # type: ignore[arg-type]
                    keep,
                    way,
                    pending=way == "deferred",
                    num_slots=2,
                    early_records=early_records(tiers, 2, way),  # type: ignore[arg-type]
                )
                written = sorted(visit.record for visit in visits if visit.writes)
                assert written == list(range(len(SPEC.records)))
                assert all(visit.reads == "state" for visit in visits if visit.writes)


@pytest.mark.parametrize("way", get_args(Way))
def test_the_layer_where_forward_turns_around_is_read_once(way: Way) -> None:
    tiers = ("nvme",) * len(SPEC.records)
    turning = SPEC.records.index(SPEC.of_kind("layer")[-1])

    def read(num_slots: int) -> list[str]:
        visits = step_visits(
            SPEC,
            tiers,  # type: ignore[arg-type]
            (),
            way,
            pending=way == "deferred",
            num_slots=num_slots,
            early_records=early_records(tiers, 1, way),  # type: ignore[arg-type]
        )
        return [visit.reads for visit in visits if visit.record == turning]

    last = {"speculative": [], "serial": ["state"], "deferred": []}[way]
    first = "state" if way == "deferred" else "weights"
    again = "state" if way == "speculative" else "weights"
    assert read(2) == [first, again, *last]
    assert read(3) == [first, "rest" if way == "speculative" else "nothing", *last]


def test_traffic_of_a_step_is_that_of_the_formula() -> None:
    """fp32 compute: 4 B/param forward, 12 read and 12 written in a speculative backward; the
    serial way reads the weights once more."""
    config = _config(state_tier="nvme", recompute="all")
    plan = make_plan(SPEC, config, longest_row_tokens=256, box=BOX)
    n = SPEC.num_params
    assert plan.link_bytes["speculative"]["nvme_read"] == pytest.approx(16 * n, rel=0.02)
    assert plan.link_bytes["speculative"]["nvme_write"] == pytest.approx(12 * n, rel=0.02)
    layers = sum(record.num_params for record in SPEC.of_kind("layer"))
    serial = 16 * n + 4 * layers
    assert plan.link_bytes["serial"]["nvme_read"] == pytest.approx(serial, rel=0.02)


def test_state_stays_off_the_drive_when_host_memory_holds_it() -> None:
    plan = make_plan(SPEC, _config(), longest_row_tokens=256, box=BOX)
    assert set(plan.tiers) == {"host"}
    assert plan.link_bytes["serial"]["nvme_read"] == 0


def test_state_goes_to_the_drive_when_host_memory_is_short() -> None:
    config = _config(host_bytes=900 * MIB, device_bytes=1000 * MIB)
    plan = make_plan(SPEC, config, longest_row_tokens=256, box=BOX)
    assert set(plan.tiers) == {"nvme"}
    assert plan.total_host_bytes <= 900 * MIB and plan.total_device_bytes <= 1000 * MIB


def test_slots_are_given_up_before_the_run_is_refused() -> None:
    roomy = make_plan(SPEC, _config(state_tier="nvme"), longest_row_tokens=64, box=BOX)
    short = _config(state_tier="nvme", host_bytes=roomy.total_host_bytes - MIB)
    assert roomy.num_slots == 3
    assert make_plan(SPEC, short, longest_row_tokens=64, box=BOX).num_slots == 2


@pytest.mark.parametrize(
    ("settings", "box", "words"),
    [
        ({"device_bytes": 100 * MIB}, BOX, "on the device"),
        ({"host_bytes": 100 * MIB, "state_tier": "nvme"}, BOX, "of host memory"),
        ({}, Box(device="cpu", device_bytes=2**33, host_bytes=2**33), "at least one volume"),
        (
            {},
            Box(device="cpu", device_bytes=2**33, host_bytes=2**33, volumes={"/d": 2**30}),
            "on the volumes",
        ),
    ],
)
def test_a_run_that_cannot_fit_is_refused_with_numbers(
    settings: dict[str, Any], box: Box, words: str
) -> None:
    with pytest.raises(CannotFit, match=rf"needs \d+ MiB {words}|{words}"):
        make_plan(SPEC, _config(**settings), longest_row_tokens=256, box=box)


def test_two_volumes_of_one_drive_have_its_space_once() -> None:
    needed = make_plan(SPEC, _config(), longest_row_tokens=256, box=BOX).volume_bytes
    rooms = {
        path: VolumeRoom(path=path, device=7, free_bytes=int(0.9 * needed)) for path in ("/a", "/b")
    }
    box = replace(BOX, volumes=rooms)
    with pytest.raises(CannotFit, match="only .* are free"):
        make_plan(SPEC, _config(), longest_row_tokens=256, box=box)


@pytest.mark.parametrize("strategy", ["auto", "megatrain"])
def test_adapters_that_cannot_fit_are_refused_with_numbers(strategy: Any) -> None:
    config = TrainConfig(model="m", dataset="d", method="lora", device_bytes=MIB, strategy=strategy)
    spec = method_spec(shape_spec("tiny", 2), config)
    with pytest.raises(CannotFit, match=r"needs \d+ MiB on the device"):
        make_plan(spec, config, longest_row_tokens=64, box=Box(
            device="cpu", device_bytes=2**33, host_bytes=2**33, volumes={"/d": 2**40},
        ))  # fmt: skip


@pytest.mark.parametrize("slack", [0, -1])
def test_what_is_planned_is_created_and_what_is_refused_is_not(tmp_path: Path, slack: int) -> None:
    """One judge: the limit of a volume at which planning says no is that of creating the store."""
    spec = shape_spec("tiny", layers=1)
    needed = make_plan(spec, _config(), longest_row_tokens=16, box=BOX).volume_bytes
    volume = VolumeConfig(path=tmp_path, limit_bytes=needed + slack)
    room = detect_box(device="cpu", volumes=[f"{tmp_path}:{needed + slack}"]).volumes
    box = Box.from_dict(json.loads(json.dumps(asdict(replace(BOX, volumes=room)))))
    records = [state_record(record, "exact") for record in spec.records]
    if slack:
        with pytest.raises(CannotFit, match="of a limit of"):
            make_plan(spec, _config(), longest_row_tokens=16, box=box)
        with pytest.raises(NoSpace, match="of a limit of"):
            TensorStore.create([volume], records, name="s")
        return
    make_plan(spec, _config(), longest_row_tokens=16, box=box)
    TensorStore.create([volume], records, name="s").close()
    assert (tmp_path / "s" / "data.bin").stat().st_size == needed


def test_a_plan_counts_the_state_in_every_format() -> None:
    spec = shape_spec("llama-8b-vocab-32k")
    box = replace(BOX, device_bytes=2**40, host_bytes=2**40, volumes={"/v": 2**40})
    plans = {
        name: make_plan(spec, _config(state_format=name), longest_row_tokens=256, box=box)
        for name in get_args(StateFormat)
    }
    tables = sum(record.num_params for record in spec.records if record.kind != "layer")
    per_param = {"exact": 12, "q8": 5 + 1 / 64, "sr_bf16": 6, "sr_q8": 4 + 1 / 64}
    for name, plan in plans.items():
        assert plan.state_format == name and plan.state_bytes == plans["exact"].state_bytes
        wanted = per_param[name] * (spec.num_params - tables) + 12 * tables
        assert plan.state_bytes[name] == pytest.approx(wanted, rel=1e-3)
    volumes = {name: plan.volume_bytes for name, plan in plans.items()}
    assert volumes["exact"] > volumes["sr_bf16"] > volumes["q8"] > volumes["sr_q8"]
    slots = {name: plan.slot_bytes for name, plan in plans.items()}
    layer = spec.of_kind("layer")[0].num_elements
    assert slots["sr_q8"] == pytest.approx(per_param["sr_q8"] * layer, rel=0.01)


def test_the_microbatch_shrinks_until_it_fits() -> None:
    config = _config(batch_rows=64, microbatch_rows=64, state_tier="nvme", device_bytes=1500 * MIB)
    fitted = fit_microbatch(SPEC, config, longest_row_tokens=256, box=BOX)
    assert 256 <= (fitted.microbatch_tokens or 0) < 64 * 256
    make_plan(SPEC, fitted, longest_row_tokens=256, box=BOX)
    with pytest.raises(CannotFit):
        make_plan(SPEC, config, longest_row_tokens=256, box=BOX)


def test_gradients_need_no_home_when_each_factor_is_known_and_every_step_commits() -> None:
    plan = make_plan(
        SPEC, _config(state_tier="nvme", clip_mode="per_layer"), longest_row_tokens=64, box=BOX
    )
    assert not plan.keep_grads and plan.host_bytes["gradients"] == 0
    assert plan.clip_way == "speculative"


def test_who_has_no_room_for_gradients_is_told_of_it_whatever_the_norm() -> None:
    config = _config(state_tier="nvme", host_bytes=400 * MIB, max_grad_norm=0.05)
    with pytest.raises(CannotFit, match="clip_mode.* keep no gradients"):
        make_plan(SPEC, config, longest_row_tokens=64, box=BOX)


@pytest.mark.parametrize(
    ("host_mib", "waits"), [(80, ["nvme"]), (400, ["host", "nvme"]), (4096, ["host"])]
)
def test_layer_inputs_go_to_nvme_only_when_they_must(host_mib: int, waits: list[str]) -> None:
    settings: dict[str, Any] = {
        "device": "cuda",
        "compute_dtype": "bfloat16",
        "batch_rows": 16,
        "state_tier": "device",
        "clip_mode": "none",
        "device_bytes": 4090 * MIB,
        "host_bytes": host_mib * MIB,
    }
    plan = make_plan(SPEC, _config(**settings), longest_row_tokens=2048, box=BOX)
    assert sorted({tier for tier in plan.activation_tiers if tier != "device"}) == waits
    far = plan.activation_tiers.count("nvme")
    hidden = 16 * 2048 * 576 * 2
    assert 0 <= plan.scratch_bytes - far * hidden <= far * 16 * 4096
    assert plan.forecast.step.link_bytes["nvme_write"] == far * hidden
    with pytest.raises(CannotFit, match="boundary_activations 1080 MiB"):
        superoffload = _config(**{**settings, "host_bytes": 8 * MIB}, strategy="superoffload")
        make_plan(SPEC, superoffload, longest_row_tokens=2048, box=BOX)


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_every_part_of_the_arena_is_whole_pages(rows: int) -> None:
    """The arena is exactly the sum of its parts, and each is carved in pages."""
    settings: dict[str, Any] = {
        "device": "cuda",
        "compute_dtype": "bfloat16",
        "batch_rows": rows,
        "recompute": "all",
        "activation_tier": "host",
    }
    plan = make_plan(SPEC, _config(**settings), longest_row_tokens=997, box=BOX)
    assert plan.host_bytes["boundary_activations"] > 0
    assert all(size % 4096 == 0 for size in plan.host_bytes.values()), plan.host_bytes


def test_planning_loads_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    source = Path(__file__).parents[2] / ".src"
    code = (
        "import sys; from headrace.engine import make_plan, Box, TrainConfig, read_model_spec;"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, check=False
    )
    assert done.returncode == 0
