"""A run ends early when its evaluation loss no longer gets better, whoever died meanwhile."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datasets import write_dataset
from headrace.engine import RunEvent
from headrace.engine.checkpoint import LoopState
from headrace.engine.early_stop import judge
from runs import Run, assert_same_state
from tiny import make_tiny_llama


class Died(Exception):
    """Stands for SIGKILL."""


def judged(losses: list[float], min_delta: float) -> LoopState:
    state = LoopState()
    for step, loss in enumerate(losses, start=1):
        state = judge(replace(state, step=step, last_eval_loss=loss), min_delta=min_delta)
    return state


def test_only_a_loss_lower_by_more_than_the_least_difference_is_better() -> None:
    state = judged([3.0, 2.0, 1.95, 2.5], 0.1)
    assert (state.best_eval_loss, state.evals_since_best) == (2.0, 2)
    assert judged([3.0, 2.0, 1.85], 0.1).evals_since_best == 0


def test_a_loss_that_is_no_number_is_never_the_best() -> None:
    nan = float("nan")
    assert judged([nan, 2.0, nan, 1.5], 0.0).best_eval_loss == 1.5
    assert judged([2.0, nan, float("inf")], 0.0).evals_since_best == 2


def test_an_evaluation_that_is_done_again_counts_once() -> None:
    state = judged([2.0, 3.0], 0.0)
    assert judge(state, min_delta=0.0) == state


@pytest.fixture
def origin(tmp_path: Path) -> tuple[Path, Path]:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    dataset = write_dataset(tmp_path / "data", [8, 9, 10, 11, 12, 13, 14, 15], vocab=384)
    return model, dataset


# A rate at which this model gets worse on its own data, step after step.
SPOILING: dict[str, Any] = {"learning_rate": 0.5, "max_steps": 9, "eval_every_steps": 1}


def test_a_run_that_gets_worse_ends_after_its_patience_and_is_exported(
    origin: tuple[Path, Path], tmp_path: Path
) -> None:
    model, dataset = origin
    settings = {"eval_dataset": str(dataset), "early_stop_evals": 2, **SPOILING}
    run = Run(tmp_path / "run", model, dataset, **settings)
    result = run.go()
    losses = [e.data["eval_loss"] for e in run.events if e.type == "eval"]
    assert result.outcome == "succeeded" and result.export_dir
    assert result.step == result.total_steps == len(run.metrics()) < 9
    between = losses[1:]  # the first is of the untrained model
    assert min(between[-2:]) >= min(between[:-2]), losses
    assert any("stopping early" in event.message for event in run.events)


def test_killed_and_resumed_a_run_stops_at_the_same_step(
    origin: tuple[Path, Path], tmp_path: Path
) -> None:
    model, dataset = origin
    settings = {"eval_dataset": str(dataset), "early_stop_evals": 2, **SPOILING}
    plain = Run(tmp_path / "plain", model, dataset, **settings)
    plain.go()
    killed = Run(tmp_path / "killed", model, dataset, commit_every_steps=2, **settings)

    def die(event: RunEvent) -> None:
        if event.type == "eval" and event.step == 2:
            raise Died

    with pytest.raises(Died):
        killed.go(emit=die)
    assert killed.go().step == plain.metrics()[-1]["step"]
    assert_same_state(killed.state(), plain.state())
