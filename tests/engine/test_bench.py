"""A timed step of random weights: what it writes is told by what it is, the base is none of it."""

from pathlib import Path
from time import sleep
from typing import Any

import pytest

from headrace.engine import TrainConfig, bench_step, method_spec, shape_spec
from headrace.engine.pipeline import Pipeline
from headrace.storage import VolumeConfig

MIB = 2**20
STEPS = 2  # timed, and one before them


def timed(folder: Path, **settings: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "batch_rows": 2, "microbatch_rows": 1, "device_bytes": 600 * MIB, "host_bytes": 600 * MIB,
        "lora_rank": 4, **settings,
    }  # fmt: skip
    config = TrainConfig(model="random", dataset="random", **given)
    lines: list[str] = []
    found = bench_step(
        config,
        spec=method_spec(shape_spec("tiny", 3), config),
        volumes=[VolumeConfig(path=folder)],
        tokens_per_row=16,
        slots=(2,),
        num_steps=STEPS,
        tell=lines.append,
    )
    assert lines[-1].startswith(f"step {STEPS + 1} of {STEPS + 1}")
    return {**found["runs"]["2"], **{k: found[k] for k in ("num_params", "num_trained_params")}}


@pytest.mark.parametrize("base", ["auto", "nf4", "int8"])
@pytest.mark.parametrize("home", ["host", "nvme"])
def test_steps_of_adapters_write_nothing_of_the_base(tmp_path: Path, home: str, base: str) -> None:
    run = timed(tmp_path, method="lora", frozen_format=base, state_tier=home)
    trained, written = run["num_trained_params"], run["written_bytes"]
    commits = STEPS + 1
    assert written["frozen"] == 0
    # Gaps between parameters come on top of 4 bytes of weights and 8 of moments.
    assert written["weights"] == pytest.approx(4 * trained * commits, rel=0.05)
    assert written["moments"] == 2 * written["weights"]
    assert 0 < written["overhead"] < 0.2 * written["weights"]
    imported = run["imported_bytes"]["frozen"]
    assert (imported > 0.5 * run["num_params"]) == (home == "nvme")


def test_steps_of_all_of_a_model_write_their_weights_and_moments(tmp_path: Path) -> None:
    run = timed(tmp_path, state_tier="nvme", max_grad_norm=1e9, clip_way="serial")
    written = run["written_bytes"]
    assert written["frozen"] == 0 and written["moments"] == 2 * written["weights"]
    assert written["weights"] == pytest.approx(4 * run["num_params"] * (STEPS + 1), rel=0.02)


def test_a_frozen_model_needs_room_on_the_volumes_where_it_lives_there_alone(
    tmp_path: Path,
) -> None:
    whole = timed(tmp_path, method="lora", state_tier="nvme")
    adapters = timed(tmp_path, method="lora", state_tier="host")
    frozen = whole["placement"]["frozen_bytes"]
    rooms = [one["placement"]["volume_bytes"] for one in (whole, adapters)]
    assert rooms[0] - rooms[1] == pytest.approx(frozen, rel=0.02)


@pytest.mark.parametrize("way", ["serial", "deferred"])
def test_a_drive_reads_for_the_next_step_while_this_one_ends(tmp_path: Path, way: str) -> None:
    """What the steps are said to move is whole steps' all the same."""
    found: dict[str, int] = {}

    def look(work: Any) -> dict[str, Any]:
        found["read"] = work.store.stats().links["nvme_read"].payload_bytes
        return {}

    volume = VolumeConfig(path=tmp_path)
    config = TrainConfig(
        model="m",
        dataset="d",
        state_tier="nvme",
        clip_way=way,  # type: ignore[arg-type]
        commit_every_steps=100,
        packing="off",
    )
    runs = []
    for steps in (1, 2):
        result = bench_step(
            config,
            spec=shape_spec("tiny", 6),
            tokens_per_row=8,
            slots=(2,),
            volumes=[volume],
            num_steps=steps,
            commit=False,
            look=look,
        )
        (run,) = result["runs"].values()
        runs.append((found["read"], run["link_bytes"]["nvme_read"], run["placement"]))
    (once, each, _), (twice, again, plan) = runs
    assert each == again == plan["link_bytes"][way]["nvme_read"] == twice - once
    if way == "serial":  # in the other the first step has no update to make
        assert 0 < once - 2 * each <= 2 * plan["slot_bytes"]


def test_what_is_still_read_ahead_when_a_step_begins_is_in_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The median of two steps would else be of one that has its first records for nothing."""
    real = Pipeline.wait_ahead

    def wait_ahead(pipeline: Pipeline[Any]) -> None:
        sleep(0.3)
        real(pipeline)

    monkeypatch.setattr(Pipeline, "wait_ahead", wait_ahead)
    result = bench_step(
        TrainConfig(model="m", dataset="d", state_tier="nvme", commit_every_steps=100),
        spec=shape_spec("tiny", 2),
        tokens_per_row=8,
        slots=(2,),
        volumes=[VolumeConfig(path=tmp_path)],
        num_steps=1,
        commit=False,
    )
    assert result["runs"]["2"]["step_seconds"] >= 0.3
