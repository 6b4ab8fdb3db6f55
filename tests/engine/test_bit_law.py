"""Law 1: placement, slots, recompute, clip way, crashes and resumes never change a bit."""

import signal
from pathlib import Path
from typing import Any

import pytest

from datasets import write_dataset
from headrace.engine.report import RunEvent, StopReason
from runs import Run, assert_same_state, killed
from tiny import make_tiny_llama

LENGTHS = [9, 17, 5, 30, 12, 21, 8, 26, 14, 11]
PACKED = {"microbatch_tokens": 45}  # two or three microbatches a step, of up to four rows


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def origin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model, a data set and the state that a plain run ends with."""
    folder = tmp_path_factory.mktemp("origin")
    model = make_tiny_llama(folder / "model", tied=request.param, seed=1)
    dataset = write_dataset(folder / "data", LENGTHS, vocab=384)
    run = Run(folder / "plain", model, dataset, **plain_settings())
    run.go()
    return model, dataset, run


@pytest.mark.parametrize(
    "settings",
    [
        {"state_tier": "host"},
        {"state_tier": "device"},
        {"state_tier": "device", "recompute": "none", "commit_every_steps": 3},
        {"num_slots": 2},
        {"num_slots": 5},
        {"num_slots": 1},
        {"activation_tier": "host"},
        {"activation_tier": "nvme"},
        {"activation_tier": "nvme", "state_tier": "host", "commit_every_steps": 3},
        {"activation_tier": "nvme", "strategy": "zero_infinity"},
        {"activation_tier": "host", "strategy": "zero_infinity"},
        {"grad_tier": "device"},
        {"clip_way": "speculative", "state_tier": "host"},
        {"clip_way": "speculative", "state_tier": "host", "commit_every_steps": 3, "num_slots": 5},
        {"clip_way": "speculative", "state_tier": "host", "optimizer_host_share": 0.5},
        {"grad_tier": "host", "state_tier": "host", "commit_every_steps": 3},
        {"state_tier": "host", "commit_every_steps": 4, "num_slots": 12},
        {"recompute": "none"},
        {"clip_way": "speculative"},
        {"clip_way": "speculative", "recompute": "none", "num_slots": 5},
        {"commit_every_steps": 3},
        {"clip_way": "deferred"},
        {"clip_way": "deferred", "commit_every_steps": 3, "num_slots": 2},
        {"clip_way": "deferred", "state_tier": "host", "commit_every_steps": 4},
        {"clip_way": "deferred", "state_tier": "device", "commit_every_steps": 3},
        {"clip_way": "deferred", "commit_every_steps": 4, "recompute": "none", "num_slots": 5},
        {"state_tier": "host", "commit_every_steps": 2, "recompute": "none"},
    ],
    ids=lambda settings: "-".join(f"{k}={v}" for k, v in settings.items()),
)
def test_placement_never_changes_a_bit(
    origin: Any, tmp_path: Path, settings: dict[str, Any]
) -> None:
    model, dataset, plain = origin
    run = Run(tmp_path, model, dataset, **{**plain_settings(), **settings})
    run.go()
    assert [m["clip_factor"] < 1 for m in run.metrics()] == [True] * 4  # the clip bites
    assert [m["loss"] for m in run.metrics()] == [m["loss"] for m in plain.metrics()]
    assert_same_state(run.state(), plain.state())


@pytest.fixture(scope="module", params=["q8", "sr_bf16", "sr_q8"])
def compact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same in a compact format."""
    folder = tmp_path_factory.mktemp("compact")
    model = make_tiny_llama(folder / "model", tied=False, seed=1, layers=2)
    dataset = write_dataset(folder / "data", LENGTHS, vocab=384)
    settings = {**plain_settings(), "state_format": request.param}
    run = Run(folder / "plain", model, dataset, **settings)
    run.go()
    return model, dataset, run, settings


@pytest.mark.parametrize(
    "other",
    [
        {"clip_way": "speculative", "num_slots": 1},
        {"clip_way": "deferred", "commit_every_steps": 3, "state_tier": "host"},
        {"state_tier": "device", "recompute": "none"},
    ],
    ids=["redone", "deferred", "resident"],
)
def test_placement_never_changes_a_bit_of_a_compact_format(
    compact: Any, tmp_path: Path, other: dict[str, Any]
) -> None:
    model, dataset, plain, settings = compact
    run = Run(tmp_path, model, dataset, **{**settings, **other})
    run.go()
    assert [m["clip_factor"] < 1 for m in run.metrics()] == [True] * 4  # the clip bites
    assert_same_state(run.state(), plain.state())


def test_a_compact_run_killed_and_resumed_ends_with_the_same_bits(
    compact: Any, tmp_path: Path
) -> None:
    model, dataset, plain, settings = compact
    assert killed(tmp_path, model, dataset, settings, kill_at=15) == -signal.SIGKILL
    run = Run(tmp_path, model, dataset, **settings)
    assert run.go().outcome == "succeeded"
    assert_same_state(run.state(), plain.state())


def plain_settings() -> dict[str, Any]:
    return {"clip_way": "serial", "recompute": "all", **PACKED}


@pytest.mark.parametrize(
    "settings",
    [
        {"state_tier": "host", "commit_every_steps": 2, "recompute": "none"},
        {"clip_way": "speculative", "num_slots": 2},
        {"clip_way": "deferred", "commit_every_steps": 3},
    ],
    ids=lambda settings: "-".join(f"{k}={v}" for k, v in settings.items()),
)
def test_nor_with_rows_side_by_side(origin: Any, tmp_path: Path, settings: dict[str, Any]) -> None:
    model, dataset, _ = origin
    plain = {"clip_way": "serial", "recompute": "all", "packing": "off"}
    one = Run(tmp_path / "one", model, dataset, **plain)
    other = Run(tmp_path / "other", model, dataset, **{**plain, **settings})
    one.go()
    other.go()
    assert_same_state(one.state(), other.state())


@pytest.mark.parametrize("mode", ["lagged", "per_layer", "none"])
def test_a_factor_known_early_gives_the_same_bits_early_and_late(
    origin: Any, tmp_path: Path, mode: str
) -> None:
    model, dataset, _ = origin
    early = Run(tmp_path / "early", model, dataset, clip_mode=mode, **PACKED)
    late = Run(tmp_path / "late", model, dataset, clip_mode=mode, state_tier="host", **PACKED)
    early.go()
    late.go()
    assert_same_state(early.state(), late.state())


def test_a_run_that_was_paused_at_every_step_ends_with_the_same_bits(
    origin: Any, tmp_path: Path
) -> None:
    model, dataset, plain = origin
    run = Run(tmp_path, model, dataset, **PACKED)
    outcomes = []
    for _ in range(10):
        polls = iter([None, "pause"])

        def poll(polls: Any = polls) -> StopReason | None:
            return next(polls)

        outcomes.append(run.go(poll=poll).outcome)
        if outcomes[-1] == "succeeded":
            break
    assert outcomes == ["paused"] * 4 + ["succeeded"] or outcomes == ["paused"] * 3 + ["succeeded"]
    assert_same_state(run.state(), plain.state())


@pytest.mark.parametrize("kill_at", [2, 13, 15, 17, 18])
def test_killed_at_any_event_and_resumed_ends_with_the_same_bits(
    origin: Any, tmp_path: Path, kill_at: int
) -> None:
    model, dataset, plain = origin
    assert killed(tmp_path, model, dataset, PACKED, kill_at=kill_at) == -signal.SIGKILL
    events: list[RunEvent] = []
    run = Run(tmp_path, model, dataset, **PACKED)
    assert run.go(emit=events.append).outcome == "succeeded"
    assert_same_state(run.state(), plain.state())
