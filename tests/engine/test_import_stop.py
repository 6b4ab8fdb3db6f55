"""A run that is asked to stop while its model is imported does so at the next record."""

from pathlib import Path

import pytest

from datasets import write_dataset
from headrace.engine import RunEvent, run_job
from headrace.engine.report import Outcome, StopReason
from headrace.storage import TensorStore, VolumeConfig
from runs import STORE, Run, assert_same_state
from tiny import make_tiny_llama


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("cancel", "cancelled"), ("pause", "paused"), ("shutdown", "interrupted")],
)
def test_a_stop_ends_an_import_and_the_next_run_is_as_if_there_had_been_none(
    tmp_path: Path, reason: StopReason, outcome: Outcome
) -> None:
    """A large model is imported for minutes: nobody waits for that to cancel a job."""
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    dataset = write_dataset(tmp_path / "data", [12, 7, 30, 9, 21, 16, 5, 11], vocab=384)
    plain = Run(tmp_path / "plain", model, dataset)
    plain.go()
    stopped = Run(tmp_path / "stopped", model, dataset)
    events: list[RunEvent] = []
    polls = iter([None, None, reason])
    result = run_job(
        stopped.config,
        run_dir=tmp_path / "stopped" / "run",
        name=STORE,
        emit=events.append,
        poll=lambda: next(polls),
    )
    assert (result.outcome, result.step, result.total_steps) == (outcome, 0, 4)
    imported = [event.data["records"] for event in events if "records" in event.data]
    assert imported == [1, 2]
    volumes = [VolumeConfig.parse(text) for text in stopped.config.volumes]
    assert not TensorStore.exists(volumes, name=STORE)
    assert stopped.go().outcome == "succeeded"
    assert_same_state(stopped.state(), plain.state())
