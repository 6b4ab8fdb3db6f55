"""Law 1 for the optimizer's device: whoever updates a layer, and however many, the bits are one."""

from pathlib import Path
from typing import Any

import pytest

import headrace.engine.host_optimizer as host_optimizer
from datasets import write_dataset
from headrace.engine.config import TrainConfig
from runs import Run, assert_same_state
from tiny import make_tiny_llama

LENGTHS = [9, 17, 5, 30, 12, 21, 8, 26, 14, 11]
COMMON: dict[str, Any] = {"state_tier": "host", "max_steps": 20, "commit_every_steps": 7}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("inputs")
    model = make_tiny_llama(folder / "model", tied=True, seed=1)
    return model, write_dataset(folder / "data", LENGTHS, vocab=384)


@pytest.fixture(scope="module")
def by_device(inputs: Any, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Twenty steps in which every record is updated on the compute device."""
    folder = tmp_path_factory.mktemp("device")
    settings = {**COMMON, "optimizer_device": "device", "clip_way": "serial"}
    run = Run(folder, *inputs, **settings)
    run.go()
    assert [m["clip_factor"] < 1 for m in run.metrics()] == [True] * 20  # the clip bites
    return run


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer_device": "host", "clip_way": "serial"},
        {"optimizer_device": "host", "clip_way": "deferred", "num_slots": 2},
        {"optimizer_host_share": 0.5, "clip_way": "serial", "recompute": "none"},
        {"optimizer_host_share": 0.5, "clip_way": "deferred", "num_slots": 5},
    ],
    ids=lambda settings: "-".join(f"{k}={v}" for k, v in settings.items()),
)
def test_what_updates_a_layer_never_changes_a_bit(
    inputs: Any, by_device: Run, tmp_path: Path, settings: dict[str, Any]
) -> None:
    run = Run(tmp_path, *inputs, **{**COMMON, **settings})
    run.go()
    assert [m["loss"] for m in run.metrics()] == [m["loss"] for m in by_device.metrics()]
    assert_same_state(run.state(), by_device.state())


@pytest.mark.parametrize("mode", ["lagged", "per_layer", "none"])
def test_each_clip_mode_gives_the_same_bits_by_processor_and_device(
    inputs: Any, tmp_path: Path, mode: str
) -> None:
    ends = []
    for device in ("device", "host"):
        settings = {**COMMON, "max_steps": 4, "clip_mode": mode, "optimizer_device": device}
        run = Run(tmp_path / device, *inputs, **settings)
        run.go()
        ends.append(run.state())
    assert_same_state(*ends)


def test_an_evaluation_and_a_checkpoint_see_every_update(inputs: Any, tmp_path: Path) -> None:
    told = []
    for device in ("device", "host"):
        settings = {**COMMON, "max_steps": 6, "eval_every_steps": 2, "checkpoint_every_steps": 3}
        settings |= {"optimizer_device": device, "eval_dataset": str(inputs[1])}
        run = Run(tmp_path / device, *inputs, **settings)
        run.go()
        told.append([e.data["eval_loss"] for e in run.events if e.type == "eval"])
        assert [e.step for e in run.events if e.type == "checkpoint"] == [3]
    assert told[0] == told[1] and len(set(told[0])) > 2


def test_a_failed_update_ends_the_run_with_its_cause(
    inputs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise MemoryError("no room for the update")

    monkeypatch.setattr(host_optimizer, "adamw_cpu", broken)
    run = Run(tmp_path, *inputs, **{**COMMON, "optimizer_device": "host"})
    with pytest.raises(MemoryError, match="no room for the update"):
        run.go()


def test_updates_without_a_compiled_kernel_are_warned_of(
    inputs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engine.adamw_cpu.fused", None)
    monkeypatch.setattr("headrace.engine.adamw_cpu._missing", "No module named 'numba'")
    run = Run(tmp_path, *inputs, **{**COMMON, "max_steps": 1})
    run.go()
    (warning,) = [event for event in run.events if event.level == "warn"]
    assert "slower" in warning.message and "No module named 'numba'" in warning.message


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"optimizer_host_share": 1.5}, "wanted 0 to 1"),
        ({"optimizer_host_share": 0.5, "optimizer_device": "host"}, "goes with auto alone"),
        ({"optimizer_device": "gpu"}, "wanted one of auto, device, host"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        TrainConfig(model="m", dataset="d", **settings)
