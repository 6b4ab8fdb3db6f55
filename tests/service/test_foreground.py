import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import fake_engine
from headrace.engine import RunEvent, RunResult, TrainConfig
from headrace.service.errors import ApiError
from headrace.service.event_log import EventReader
from headrace.service.foreground import Foreground, train_foreground
from headrace.service.lockfile import LockFile, LockHeld
from headrace.service.settings import Settings
from tiny import make_tiny_llama


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    make_tiny_llama(path, tied=True, seed=0)
    return path


class Case:
    """One place to train in, with a scripted engine, and what was told."""

    def __init__(self, tmp_path: Path, model_dir: Path) -> None:
        self.root = tmp_path
        self.model_dir = model_dir
        self.told: list[RunEvent] = []
        self.configs: list[TrainConfig] = []
        self.settings = Settings(data_dir=tmp_path / "data", device="cpu")
        (tmp_path / "data").mkdir()
        self.write_rows("a short answer")

    def write_rows(self, answer: str) -> None:
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
        (self.root / "rows.jsonl").write_text(json.dumps({"messages": turns}) + "\n")

    def train(self, on_event: Any = None, **body: Any) -> Foreground:
        def engine(config: TrainConfig, **given: Any) -> RunResult:
            self.configs.append(config)
            return fake_engine.run_job(config, **given)

        def emit(event: RunEvent) -> None:
            self.told.append(event)
            if on_event:
                on_event(event)

        return train_foreground(
            {"model": "tiny", "training_file": "rows.jsonl", **body},
            settings=self.settings,
            model_path=self.model_dir,
            beside=self.root,
            emit=emit,
            engine=engine,
        )

    @property
    def steps(self) -> list[int | None]:
        return [event.step for event in self.told if event.type == "metrics"]


@pytest.fixture
def case(tmp_path: Path, model_dir: Path) -> Case:
    return Case(tmp_path, model_dir)


def test_ctrl_c_commits_and_the_same_command_goes_on_then_is_done(case: Case) -> None:
    def interrupt(event: RunEvent) -> None:
        if event.type == "metrics" and event.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    first = case.train(interrupt)
    assert (first.result.outcome, first.result.step) == ("interrupted", 2)
    assert signal.getsignal(signal.SIGINT) is before
    second = case.train(host_bytes=10**9, strategy="memascend")
    assert second.result.outcome == "succeeded" and second.job_dir == first.job_dir
    assert case.steps == [1, 2, 3, 4]
    assert [config.strategy for config in case.configs] == ["auto", "memascend"]
    third = case.train()
    assert third.result == second.result and case.steps == [1, 2, 3, 4]
    assert "succeeded before" in case.told[-1].message


def test_a_tracker_that_is_asked_for_is_written_and_makes_no_other_job(case: Case) -> None:
    done = case.train(integrations=[{"type": "tensorboard"}])
    assert list((done.job_dir / "tensorboard").glob("events.out.*"))
    assert case.train().job_dir == done.job_dir
    assert done.result.outcome == "succeeded"


def test_the_log_says_last_how_the_run_ended(case: Case) -> None:
    done = case.train()
    last = list(EventReader(done.job_dir / "events.jsonl").read())[-1]
    assert (last.type, last.data["outcome"], last.step) == ("result", "succeeded", done.result.step)


def test_the_log_says_why_a_run_failed(case: Case) -> None:
    case.settings.data_dir.joinpath("script.json").write_text('{"do": {"2": "odd"}}')
    with pytest.raises(ValueError, match="odd"):
        case.train()
    (job_dir,) = case.settings.jobs_dir.iterdir()
    last = EventReader(job_dir / "events.jsonl").read()[-1]
    error = {"type": "ValueError", "message": "odd"}
    assert last.type == "result" and last.data == {"outcome": "failed", "error": error}


def test_other_data_are_another_job(case: Case) -> None:
    first = case.train()
    case.write_rows("another answer")
    assert case.train().job_dir != first.job_dir


def test_another_model_in_the_same_place_is_another_job(case: Case, tmp_path: Path) -> None:
    case.model_dir = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    first = case.train()
    assert case.train().job_dir == first.job_dir
    make_tiny_llama(case.model_dir, tied=True, seed=2)
    assert case.train().job_dir != first.job_dir


def test_data_that_cannot_be_used_are_refused_with_the_reason(case: Case) -> None:
    case.write_rows("a long answer " * 200)
    with pytest.raises(ApiError, match="overlong") as caught:
        case.train(method={"supervised": {"hyperparameters": {"max_seq_len": 32}}})
    assert caught.value.param == "training_file"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"training_file": "nowhere.jsonl"}, "training_file"),
        ({"validation_file": "nowhere.jsonl"}, "validation_file"),
        ({"modle": "x"}, "modle"),
    ],
)
def test_request_that_leads_nowhere_is_refused(case: Case, body: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        case.train(**body)
    assert caught.value.param == param


def test_model_may_be_a_path_here(case: Case) -> None:
    with pytest.raises(ApiError, match="neither a folder here"):
        train_foreground(
            {"model": "no-such", "training_file": "rows.jsonl"},
            settings=case.settings,
            beside=case.root,
            emit=case.told.append,
        )


def test_same_job_does_not_run_twice_at_once(case: Case) -> None:
    def enter_again(event: RunEvent) -> None:
        if event.type == "metrics" and event.step == 1:
            (job_dir,) = case.settings.jobs_dir.iterdir()
            with pytest.raises(LockHeld):
                LockFile(job_dir / "lock")

    assert case.train(enter_again).result.outcome == "succeeded"
