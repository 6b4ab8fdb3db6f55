"""What the store bounds, the run respects: bytes written, and commits kept to fall back to."""

from pathlib import Path

import pytest

from datasets import write_dataset
from headrace.engine import StateLost
from headrace.storage import TensorStore, VolumeConfig
from runs import STORE, Run, assert_same_state
from tiny import make_tiny_llama

LENGTHS = [9, 17, 5, 30, 12]


def test_a_spent_write_budget_pauses_the_run_and_a_larger_one_lets_it_go_on(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    dataset = write_dataset(tmp_path / "data", LENGTHS, vocab=384)
    plain = Run(tmp_path / "plain", model, dataset)
    plain.go()
    step_bytes = plain.metrics()[0]["links"]["nvme_write"]["payload_bytes"]
    # The import and two steps fit, the third does not.
    tight = Run(tmp_path / "tight", model, dataset, max_bytes_written=int(3.7 * step_bytes))
    result = tight.go()
    assert (result.outcome, result.step) == ("paused", 2)
    warnings = [event.message for event in tight.events if event.level == "warn"]
    assert len(warnings) == 1 and "max_bytes_written" in warnings[0]
    again = Run(tmp_path / "tight", model, dataset)
    assert again.go().outcome == "succeeded"
    assert_same_state(again.state(), plain.state())


@pytest.mark.parametrize("num_slots", [3, 16])
def test_a_run_pauses_while_the_drive_reads_for_the_next_step(
    tmp_path: Path, num_slots: int
) -> None:
    """The updates owed are made on what the last step left, however much was read ahead of it."""
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    dataset = write_dataset(tmp_path / "data", LENGTHS, vocab=384)
    settings = {"clip_way": "deferred", "commit_every_steps": 5, "num_slots": num_slots}
    plain = Run(tmp_path / "plain", model, dataset)
    plain.go()
    paused = Run(tmp_path / "paused", model, dataset, **settings)
    polls = iter([None, None, "pause"])
    assert paused.go(poll=lambda: next(polls)).outcome == "paused"  # type: ignore[arg-type]
    assert paused.go().outcome == "succeeded"
    assert_same_state(paused.state(), plain.state())


def test_a_run_whose_state_is_gone_says_so_instead_of_starting_over(tmp_path: Path) -> None:
    """As when the drive is not mounted after a restart."""
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    dataset = write_dataset(tmp_path / "data", LENGTHS, vocab=384)
    run = Run(tmp_path, model, dataset)
    polls = iter([None, "pause"])
    assert run.go(poll=lambda: next(polls)).outcome == "paused"  # type: ignore[arg-type]
    volume = tmp_path / "volume"
    volume.rename(tmp_path / "away")
    volume.mkdir()
    with pytest.raises(StateLost, match="is the drive mounted"):
        run.go()
    assert not list(volume.iterdir())
    volume.rmdir()
    (tmp_path / "away").rename(volume)
    assert run.go().outcome == "succeeded"
    assert not (tmp_path / "run" / "started").exists()


def test_commits_of_checkpoints_are_kept_to_fall_back_to(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    dataset = write_dataset(tmp_path / "data", LENGTHS, vocab=384)
    settings = {"keep_commits": 2, "checkpoint_every_steps": 1, "max_steps": 5}
    run = Run(tmp_path, model, dataset, **settings)
    run.go()
    volumes = [VolumeConfig.parse(text) for text in run.config.volumes]
    with TensorStore.open(volumes, name=STORE, read_only=True) as store:
        commits = store.commits()
    assert [(one.step, one.live) for one in commits] == [(3, False), (4, False), (5, True)]
