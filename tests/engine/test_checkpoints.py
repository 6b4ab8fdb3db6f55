"""Checkpoints of a run are told and bounded in number, wherever the run before has died."""

from pathlib import Path
from typing import Any

import pytest

from datasets import write_dataset
from headrace.engine import RunEvent
from runs import Run, assert_same_state
from tiny import make_tiny_llama


class Died(Exception):
    """Stands for SIGKILL."""


def test_checkpoint_whose_writer_died_before_it_said_so_is_told_by_the_next(
    tmp_path: Path,
) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    dataset = write_dataset(tmp_path / "data", [8, 9, 10, 11, 12, 13, 14, 15], vocab=384)
    run = Run(tmp_path, model, dataset, checkpoint_every_steps=1, keep_last=1)

    def die(event: RunEvent) -> None:
        if event.type == "checkpoint" and event.step == 2:
            raise Died

    with pytest.raises(Died):
        run.go(emit=die)
    folder = tmp_path / "run" / "checkpoints"
    for left in (".step-0.removed", ".step-1.partial"):  # of runs that died while they did that
        (folder / left).mkdir()
    run.events.clear()
    run.go()
    assert [event.step for event in run.events if event.type == "checkpoint"] == [2, 3]
    assert [path.name for path in folder.iterdir()] == ["step-3"]


def test_the_best_checkpoint_stays_beside_the_newest(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    dataset = write_dataset(tmp_path / "data", [8, 9, 10, 11, 12, 13, 14, 15], vocab=384)
    run = Run(
        tmp_path,
        model,
        dataset,
        eval_dataset=str(dataset),
        learning_rate=0.5,  # every step is worse than the one before
        max_steps=5,
        eval_every_steps=1,
        checkpoint_every_steps=1,
        keep_best=1,
    )
    run.go()
    evals = {event.step: event.data["eval_loss"] for event in run.events if event.type == "eval"}
    best = min((1, 2, 3, 4), key=lambda step: evals[step])
    folder = tmp_path / "run" / "checkpoints"
    assert {path.name for path in folder.iterdir()} == {f"step-{best}", "step-4"}
    told = [event.data for event in run.events if event.type == "checkpoint"]
    assert told[-1]["eval_token_accuracy"] is not None and told[-1]["train_token_accuracy"] >= 0


@pytest.mark.parametrize("note", [None, "", '{"step": 2, "eval_l'])
def test_the_best_checkpoint_stays_though_its_writer_died_before_its_note(
    tmp_path: Path, note: str | None
) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    dataset = write_dataset(tmp_path / "data", [8, 9, 10, 11, 12, 13, 14, 15], vocab=384)
    every: dict[str, Any] = {"eval_every_steps": 1, "checkpoint_every_steps": 1, "keep_best": 1}
    worse = {"eval_dataset": str(dataset), "learning_rate": 0.5, "max_steps": 4}
    run = Run(tmp_path, model, dataset, **every, **worse)

    def die(event: RunEvent) -> None:
        if event.type == "checkpoint" and event.step == 1:  # the best of them
            raise Died

    with pytest.raises(Died):
        run.go(emit=die)
    folder = tmp_path / "run" / "checkpoints"
    path = folder / "step-1" / "headrace.json"
    whole = path.read_text()
    path.unlink() if note is None else path.write_text(note)
    run.go()
    assert sorted(path.name for path in folder.iterdir()) == ["step-1", "step-3"]
    assert path.read_text() == whole


def test_minutes_make_commits_and_checkpoints_due(
    tmp_path: Path,
) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    dataset = write_dataset(tmp_path / "data", [8, 9, 10, 11, 12, 13, 14, 15], vocab=384)
    settings: dict[str, Any] = {"commit_every_steps": 1000, "max_steps": 5}
    plain = Run(tmp_path / "plain", model, dataset, **settings)
    plain.go()
    assert [e.step for e in plain.events if e.type == "commit"] == [5]
    minutes = {"commit_every_minutes": 1e-9, "checkpoint_every_minutes": 1e-9}
    run = Run(tmp_path / "timed", model, dataset, **settings, **minutes)
    run.go()
    assert [e.step for e in run.events if e.type == "commit"] == [1, 2, 3, 4, 5]
    assert [e.step for e in run.events if e.type == "checkpoint"] == [1, 2, 3, 4]
    assert_same_state(run.state(), plain.state())
