"""An evaluation goes in passes that are short enough to say between them that it goes on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from datasets import write_dataset
from headrace.engine import RunEvent
from headrace.engine import reminder as reminders
from headrace.engine.evaluation import FORWARDS, GROUP_SECONDS, in_groups
from headrace.engine.reminder import Reminder
from runs import Run
from tiny import make_tiny_llama


def groups(step_seconds: float, near: int, num_batches: int = 40) -> list[int]:
    """Microbatches in each pass, of 10 tokens each where a step has 10."""
    plan = SimpleNamespace(
        activation_tiers=["device"] * near + ["host"] * (8 - near),
        max_step_tokens=10,
        forecast=SimpleNamespace(step=SimpleNamespace(seconds=step_seconds)),
    )
    work: Any = SimpleNamespace(plan=plan, spec=SimpleNamespace(first_backward_layer=0))
    batch: Any = SimpleNamespace(ids=SimpleNamespace(numel=lambda: 10))
    return [len(group) for group in in_groups(work, [batch] * num_batches)]


def test_a_pass_takes_what_fits_a_step_or_less_where_that_takes_long() -> None:
    assert groups(step_seconds=0.01, near=8) == [8] * 5
    assert groups(step_seconds=0.01, near=0) == [1] * 40
    half = FORWARDS * GROUP_SECONDS / 4  # a step of which four forward passes take too long
    assert groups(step_seconds=half, near=8) == [4] * 10
    assert groups(step_seconds=1000.0, near=8) == [1] * 40


def test_a_reminder_tells_at_once_and_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(reminders, "monotonic", lambda: now)
    told: list[RunEvent] = []
    remind = Reminder(told.append, "evaluating", 7)
    for seconds in (1, 8, 2, 1):
        now += seconds
        remind()
    assert [event.message for event in told] == ["evaluating"] * 2 and told[0].step == 7


def test_an_evaluation_in_many_passes_has_the_loss_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    data = write_dataset(tmp_path / "data", [9, 12, 7, 30, 11, 5, 16, 8], vocab=384)
    settings: dict[str, Any] = {"eval_dataset": str(data), "batch_rows": 2, "microbatch_rows": 1}
    whole = Run(tmp_path / "whole", model, data, max_steps=1, **settings)
    whole.go()
    monkeypatch.setattr("headrace.engine.evaluation.GROUP_SECONDS", 0.0)
    monkeypatch.setattr(reminders, "REMIND_SECONDS", 0.0)
    parts = Run(tmp_path / "parts", model, data, max_steps=1, **settings)
    parts.go()

    def told(run: Run) -> list[float]:
        return [event.data["eval_loss"] for event in run.events if event.type == "eval"]

    assert told(parts) == pytest.approx(told(whole), rel=1e-12)
    phases = [event.message for event in parts.events if event.type == "phase"]
    assert phases.count("evaluating") > 4
