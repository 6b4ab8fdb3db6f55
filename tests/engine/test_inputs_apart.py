"""Layer inputs on NVMe: the same bits in little memory, counted, and gone when the run is."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from datasets import write_dataset
from headrace.engine import CannotFit
from headrace.engine.report import StopReason
from headrace.engine.workspace import Workspace
from headrace.storage import PAGE_BYTES, NoSpace, round_up
from runs import Run, assert_same_state, killed
from tiny import make_tiny_llama

LENGTHS = [9, 17, 5, 30, 12, 21, 8, 26, 14, 11]
HIDDEN = 64
PLAIN: dict[str, Any] = {
    "clip_way": "serial",
    "recompute": "all",
    "num_slots": 3,
    "microbatch_tokens": 45,
}
PADDED = {**PLAIN, "packing": "off", "microbatch_tokens": None, "microbatch_rows": 2}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    model = make_tiny_llama(folder / "model", tied=False, seed=1, layers=5)
    return model, write_dataset(folder / "data", LENGTHS, vocab=384)


@pytest.fixture(scope="module", params=[PLAIN, PADDED], ids=["packed", "padded"])
def plain(
    request: pytest.FixtureRequest,
    inputs: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """A run whose layer inputs stay on the device."""
    run = Run(tmp_path_factory.mktemp("plain"), *inputs, **request.param)
    run.go()
    return run


def _plan(run: Run) -> dict[str, Any]:
    return next(event.data for event in run.events if event.type == "plan")


def _settings(run: Run) -> dict[str, Any]:
    names = ("packing", "microbatch_tokens", "microbatch_rows")
    return {**PLAIN, **{name: getattr(run.config, name) for name in names}}


def _budgets(folder: Path, inputs: tuple[Path, Path], settings: dict[str, Any]) -> dict[str, int]:
    """Room for one layer input on the device and for two in host memory, beside all else."""
    far = Run(folder, *inputs, **settings, activation_tier="nvme")
    far.go()
    plan = _plan(far)
    one = 4 * HIDDEN * plan["max_step_tokens"]
    buffers = plan["host_bytes"]["activation_ring"]  # as many again on the device, for a tier
    return {
        "device_bytes": plan["total_device_bytes"] + buffers + one,
        "host_bytes": plan["total_host_bytes"] + 2 * one + 4096,
    }


def test_inputs_go_as_near_as_they_fit_and_no_bit_changes(
    plain: Run, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = _settings(plain)
    budgets = _budgets(tmp_path / "far", inputs, settings)
    run = Run(tmp_path / "apart", *inputs, **{**settings, **budgets})
    run.go()
    plan = _plan(run)
    assert plan["activation_tiers"] == ("nvme", "nvme", "host", "host", "device")
    assert plan["total_host_bytes"] <= budgets["host_bytes"]
    assert [m["loss"] for m in run.metrics()] == [m["loss"] for m in plain.metrics()]
    assert_same_state(run.state(), plain.state())


def test_steps_move_the_bytes_that_are_planned(
    plain: Run, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    run = Run(tmp_path, *inputs, **_settings(plain), activation_tier="nvme")
    run.go()
    for step, before in zip(run.metrics(), plain.metrics(), strict=True):
        parked = 5 * 4 * HIDDEN * step["num_computed_tokens"]
        for link in ("nvme_read", "nvme_write"):
            moved = step["links"][link]["payload_bytes"]
            assert moved == step["links"][link]["planned_bytes"]
            assert moved - before["links"][link]["payload_bytes"] == parked
    wear = [_plan(one)["forecast"]["wear"]["step_bytes"] for one in (plain, run)]
    assert wear[0] < wear[1]


def test_a_long_context_trains_in_the_memory_that_the_plan_says(
    inputs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs of every layer would be most of the memory; on NVMe they take a ring of buffers."""
    model, _ = inputs
    dataset = write_dataset(tmp_path / "data", [500] * 8, vocab=384)
    arenas: list[tuple[int, int]] = []
    enter = Workspace.__enter__

    def look(work: Workspace) -> Workspace:
        arenas.append((work.plan.total_host_bytes, work.arena.free_bytes))
        return enter(work)

    monkeypatch.setattr(Workspace, "__enter__", look)
    settings = {**PLAIN, "microbatch_tokens": 500, "batch_rows": 8, "max_steps": 1}
    near = Run(tmp_path / "near", model, dataset, **settings)
    near.go()
    of_all, of_one = 5 * 4 * HIDDEN * 8 * 500, 4 * HIDDEN * 500
    ring = 4 * round_up(of_one, PAGE_BYTES)
    budgets = {
        "device_bytes": _plan(near)["total_device_bytes"] - of_all + ring,
        "host_bytes": _plan(near)["total_host_bytes"] + ring,
    }
    run = Run(tmp_path / "tight", model, dataset, **settings, **budgets)
    run.go()
    assert _plan(run)["activation_tiers"] == ("nvme",) * 5
    assert arenas[1] == (budgets["host_bytes"], 0)  # all that is held is counted
    assert_same_state(run.state(), near.state())


@pytest.mark.parametrize("plain", [PLAIN], ids=["packed"], indirect=True)
def test_a_run_killed_with_inputs_on_nvme_resumes_to_the_same_bits_and_leaves_no_file(
    plain: Run, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = {**_settings(plain), "activation_tier": "nvme"}
    assert killed(tmp_path, *inputs, settings, kill_at=15) == -signal.SIGKILL
    store = tmp_path / "volume" / "run"
    assert sorted(path.name for path in store.iterdir()) == ["data.bin", "lock", "manifest.json"]
    run = Run(tmp_path, *inputs, **settings)
    assert run.go().outcome == "succeeded"
    assert_same_state(run.state(), plain.state())


@pytest.mark.parametrize("plain", [PLAIN], ids=["packed"], indirect=True)
def test_a_volume_without_room_is_refused_and_a_run_on_it_keeps_its_commits(
    plain: Run, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = {**_settings(plain), "activation_tier": "nvme"}
    volume = tmp_path / "volume"
    needed = _plan(plain)["volume_bytes"]
    short = (f"{volume}:{needed + 4096}",)
    with pytest.raises(CannotFit, match="MiB for layer inputs"):
        Run(tmp_path, *inputs, **settings, volumes=short).go()
    polls: Iterator[StopReason | None] = iter([None, None, "pause"])
    run = Run(tmp_path, *inputs, **settings)
    assert run.go(poll=lambda: next(polls)).outcome == "paused"
    with pytest.raises(NoSpace, match="bytes are needed"):
        Run(tmp_path, *inputs, **settings, volumes=short).go()
    assert run.go().outcome == "succeeded"
    assert_same_state(run.state(), plain.state())


@pytest.mark.parametrize("plain", [PLAIN], ids=["packed"], indirect=True)
def test_inputs_on_nvme_are_written_against_the_limit(
    plain: Run, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = {**_settings(plain), "state_tier": "host", "commit_every_steps": 100}
    run = Run(tmp_path, *inputs, **settings, activation_tier="nvme", max_bytes_written=1)
    assert run.go().outcome == "paused"
