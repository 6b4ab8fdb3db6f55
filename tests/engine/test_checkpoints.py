"""Checkpoints of a run are told and bounded in number, wherever the run before has died."""

from pathlib import Path

import pytest

from datasets import write_dataset
from headrace.engine import RunEvent
from runs import Run
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
    half_removed = folder / ".step-0.removed"
    half_removed.mkdir()
    run.events.clear()
    run.go()
    assert [event.step for event in run.events if event.type == "checkpoint"] == [2, 3]
    assert [path.name for path in folder.iterdir()] == ["step-3"]
