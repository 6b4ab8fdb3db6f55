import csv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fake_engine import step_report as report
from headrace.engine import RunEvent
from headrace.service.database import Database
from headrace.service.event_log import EventLog
from headrace.service.events import Hub
from headrace.service.jobs import JobRecord
from headrace.service.journal import Journal
from headrace.service.rates import Rates, bottleneck
from headrace.service.results import error_code, write_result_file
from headrace.service.tail import Tail

JOB = "ftjob-1"
NAME = f"ft:tiny:headrace:mill:{JOB}"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.open(tmp_path / "headrace.db", Hub())
    journal.add_job(
        JobRecord(
            id=JOB,
            status="queued",
            model="tiny",
            training_file="file-1",
            seed=1,
            suffix="mill",
            created_at=1,
        )
    )
    journal.move(JOB, "running")
    yield journal
    journal.close()


def make_tail(journal: Journal, tmp_path: Path) -> Tail:
    return Tail(journal, JOB, job_dir=tmp_path, files_dir=tmp_path / "files")


def write(tmp_path: Path, *events: RunEvent) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        for event in events:
            log.append(event)


def metrics(step: int, **changed: Any) -> RunEvent:
    data = report(step, 10) | changed
    return RunEvent(type="metrics", message=f"step {step}", step=step, data=data)


def result(outcome: str, **data: Any) -> RunEvent:
    return RunEvent(type="result", message=outcome, data={"outcome": outcome, **data})


def shown(journal: Journal, kind: str) -> list[tuple[int | None, str]]:
    found = [event for event in journal.events_since(JOB, 0) if event.type == kind]
    return [(event.step, event.message) for event in found]


def job(journal: Journal) -> JobRecord:
    found = journal.job(JOB)
    assert found
    return found


def test_every_event_arrives_once_whoever_reads(journal: Journal, tmp_path: Path) -> None:
    tail = make_tail(journal, tmp_path)
    write(tmp_path, metrics(1))
    assert tail.poll() == 1
    write(tmp_path, metrics(2), metrics(3))
    assert make_tail(journal, tmp_path).poll() == 2
    assert tail.poll() == 0
    assert [step for step, _ in shown(journal, "metrics")] == [1, 2, 3]


def test_torn_line_waits_until_it_is_replaced(journal: Journal, tmp_path: Path) -> None:
    tail = make_tail(journal, tmp_path)
    write(tmp_path, metrics(1))
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"seq": 2, "at"')
    assert tail.poll() == 1
    write(tmp_path, metrics(2))
    assert tail.poll() == 1


def test_step_done_again_after_a_crash_replaces_the_one_shown(
    journal: Journal, tmp_path: Path
) -> None:
    write(tmp_path, metrics(1), metrics(2, loss=9.0), metrics(2, loss=2.0))
    make_tail(journal, tmp_path).poll()
    events = [event for event in journal.events_since(JOB, 0) if event.type == "metrics"]
    assert [(event.step, (event.data or {})["train_loss"]) for event in events] == [
        (1, 4.0),
        (2, 2.0),
    ]


@pytest.mark.parametrize("kind", ["eval", "commit", "checkpoint", "export"])
def test_what_follows_from_a_step_is_shown_once_for_it(
    journal: Journal, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "held").mkdir()
    told = RunEvent(type=kind, message="again", step=2, data={"path": str(tmp_path / "held")})  # type: ignore[arg-type]
    write(tmp_path, told, metrics(2), told)
    make_tail(journal, tmp_path).poll()
    assert shown(journal, kind) == [(2, "again")]


def test_reports_of_exports_are_shown_and_told_anew(journal: Journal, tmp_path: Path) -> None:
    first, again = ({"format": "hf", "path": "/e", "step": step} for step in (2, 3))
    for exports in ([first], [again, {"format": "gguf"}]):
        data = {"path": "/e", "exports": exports}
        write(tmp_path, RunEvent(type="export", message="there", step=2, data=data))
        make_tail(journal, tmp_path).poll()
        assert job(journal).engine["exports"] == exports


def test_rewards_of_preferences_are_shown_and_in_the_table(
    journal: Journal, tmp_path: Path
) -> None:
    step = metrics(1)
    step.data.update(reward_margin=0.5, reward_accuracy=1.0)
    evaluation = {"eval_loss": 0.6, "eval_reward_margin": 0.25, "eval_reward_accuracy": 0.75}
    write(tmp_path, step, RunEvent(type="eval", message="evaluated", step=1, data=evaluation))
    make_tail(journal, tmp_path).poll()
    engine = job(journal).engine
    assert (engine["reward_margin"], engine["reward_accuracy"]) == (0.5, 1.0)
    assert engine["valid_reward_accuracy"] == 0.75
    (told,) = [event for event in journal.events_since(JOB, 0) if event.type == "eval"]
    assert (told.data or {})["valid_reward_margin"] == 0.25
    record = write_result_file(JOB, tmp_path / "events.jsonl", tmp_path)
    head, row = Path(record.path).read_text().splitlines()
    table = dict(zip(head.split(","), row.split(","), strict=True))
    assert (table["reward_margin"], table["valid_reward_accuracy"]) == ("0.5", "0.75")


def test_step_that_is_told_again_is_counted_once(journal: Journal, tmp_path: Path) -> None:
    write(tmp_path, metrics(1), metrics(2), metrics(2), metrics(3))
    make_tail(journal, tmp_path).poll()
    engine = job(journal).engine
    assert engine["tokens_seen"] == 300
    assert engine["link_bytes"] == {"nvme_read": 3000, "nvme_write": 1500}


def test_metrics_update_what_the_job_shows(journal: Journal, tmp_path: Path) -> None:
    write(tmp_path, RunEvent(type="phase", message="training"), metrics(1), metrics(2))
    make_tail(journal, tmp_path).poll()
    engine = job(journal).engine
    assert (engine["step"], engine["total_steps"]) == (2, 10)
    assert engine["tokens_per_s"] == 200.0 and engine["eta_s"] == 4.0
    assert engine["link_bytes"] == {"nvme_read": 2000, "nvme_write": 1000}
    assert engine["tokens_seen"] == 200
    assert "read, 60 % of the step" in engine["bottleneck"]
    assert job(journal).phase == "training"


def test_metrics_event_leads_with_the_names_of_openai(journal: Journal, tmp_path: Path) -> None:
    write(tmp_path, metrics(2))
    make_tail(journal, tmp_path).poll()
    data = journal.events(JOB)[0].data or {}
    assert list(data)[:3] == ["step", "total_steps", "train_loss"]
    assert data["train_loss"] == 2.0 and data["links"]["nvme_read"]["payload_bytes"] == 1000


def test_success_names_the_model_and_leaves_a_table_of_steps(
    journal: Journal, tmp_path: Path
) -> None:
    evaluation = {"eval_loss": 1.5, "eval_token_accuracy": 0.7}
    write(
        tmp_path,
        metrics(1, loss=9.0),
        metrics(1, loss=4.0),
        metrics(2),
        RunEvent(type="eval", message="evaluated", step=2, data=evaluation),
        result("succeeded", trained_tokens=100, export_dir=str(tmp_path / "export")),
    )
    make_tail(journal, tmp_path).poll()
    done = job(journal)
    assert (done.status, done.fine_tuned_model, done.trained_tokens) == ("succeeded", NAME, 100)
    model, file = journal.model(NAME), journal.file(done.result_files[0])
    assert model and model.path == str(tmp_path / "export")
    assert file and file.purpose == "fine-tune-results"
    with Path(file.path).open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert [(row["step"], row["train_loss"], row["valid_loss"]) for row in rows] == [
        ("1", "4.0", ""),
        ("2", "2.0", "1.5"),
    ]


def test_failure_carries_the_reason_and_a_code(journal: Journal, tmp_path: Path) -> None:
    write(tmp_path, result("failed", error={"type": "NoSpace", "message": "volume is full"}))
    make_tail(journal, tmp_path).poll()
    assert job(journal).status == "failed"
    assert job(journal).error == {"code": "no_space", "message": "volume is full", "param": None}


@pytest.mark.parametrize(
    ("kind", "code"),
    [("NoSpace", "no_space"), ("OSError", "os_error"), ("IoFailed", "io_failed")],
)
def test_kind_of_an_exception_is_a_code_in_words(kind: str, code: str) -> None:
    assert error_code(kind) == code


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("cancelled", "cancelled"), ("paused", "paused"), ("interrupted", "queued")],
)
def test_other_ends_move_the_job(
    journal: Journal, tmp_path: Path, outcome: str, status: str
) -> None:
    write(tmp_path, metrics(1), result(outcome, trained_tokens=50))
    make_tail(journal, tmp_path).poll()
    assert (job(journal).status, job(journal).trained_tokens) == (status, 50)


def test_end_that_the_last_api_read_but_did_not_act_on_is_acted_on(
    journal: Journal, tmp_path: Path
) -> None:
    write(tmp_path, result("succeeded", export_dir="x"))
    journal.add_event(JOB, type="result", level="info", message="", worker_seq=1)
    make_tail(journal, tmp_path).settle()
    assert job(journal).status == "succeeded"


def test_end_before_a_new_run_is_not_acted_on_again(journal: Journal, tmp_path: Path) -> None:
    write(tmp_path, result("paused"))
    make_tail(journal, tmp_path).poll()
    journal.move(JOB, "queued")
    journal.move(JOB, "running")
    write(tmp_path, RunEvent(type="phase", message="starting"))
    make_tail(journal, tmp_path).settle()
    assert job(journal).status == "running"


def test_pause_that_was_ended_is_not_heeded_again_before_the_new_run_has_spoken(
    journal: Journal, tmp_path: Path
) -> None:
    write(tmp_path, result("paused"))
    make_tail(journal, tmp_path).poll()
    journal.move(JOB, "queued")
    journal.move(JOB, "running")
    make_tail(journal, tmp_path).settle()
    assert job(journal).status == "running"


def test_checkpoints_are_listed_while_their_folder_is_there(
    journal: Journal, tmp_path: Path
) -> None:
    tail = make_tail(journal, tmp_path)
    folders = [tmp_path / "checkpoints" / f"step-{step}" for step in (1, 2)]
    for step, folder in enumerate(folders, 1):
        folder.mkdir(parents=True)
        data = {"path": str(folder), "train_loss": 3.0, "eval_loss": None}
        write(tmp_path, RunEvent(type="checkpoint", message="saved", step=step, data=data))
    tail.poll()
    assert [held.step for held in journal.checkpoints(JOB)] == [2, 1]
    newest = journal.checkpoint(f"{NAME}:ckpt-step-2")
    assert newest and newest.metrics["train_loss"] == 3.0
    folders[0].rmdir()
    write(tmp_path, result("cancelled"))
    tail.poll()
    assert [held.step for held in journal.checkpoints(JOB)] == [2]


def test_loss_that_is_not_a_number_does_not_stop_the_tail(journal: Journal, tmp_path: Path) -> None:
    write(tmp_path, metrics(1, loss=float("nan"), skipped=True))
    make_tail(journal, tmp_path).poll()
    assert job(journal).engine["loss"] is None


def test_rates_are_means_over_the_last_steps() -> None:
    rates = Rates()
    for step in range(1, 20):
        rates.add(report(step, 40) | {"step_seconds": 100.0})
    for step in range(20, 30):
        newest = rates.add(report(step, 40) | {"step_seconds": 2.0})
    assert newest["tokens_per_s"] == 50.0 and newest["eta_s"] == 22.0


def test_bottleneck_is_compute_when_nothing_waits() -> None:
    quiet = report(1, 2) | {"stall_read_seconds": 0.01}
    assert bottleneck(quiet).startswith("compute")
    assert "commit, 40 %" in bottleneck(quiet | {"commit_seconds": 0.2})


def test_an_event_and_what_the_job_shows_of_it_are_taken_in_together_or_not_at_all(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = [{"format": "gguf", "path": "m.gguf"}]
    write(
        tmp_path,
        RunEvent(type="phase", message="exporting"),
        metrics(1),
        RunEvent(type="commit", message="safe", step=1),
        RunEvent(type="eval", message="evaluated", step=1, data={"eval_loss": 2.5}),
        RunEvent(type="plan", message="planned", data={"num_slots": 3}),
        RunEvent(type="export", message="made", data={"exports": exports}),
    )
    transact = Database._transact

    def dies_after(count: int) -> Any:
        left = iter(range(count))

        def write_or_die(self: Database, *how: Any) -> Any:
            if next(left, None) is None:
                raise KeyboardInterrupt  # a killed process writes no more
            return transact(self, *how)

        return write_or_die

    for count in range(8):  # wherever the process dies, the next one knows all
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(Database, "_transact", dies_after(count % 2))
            make_tail(journal, tmp_path).poll()
    make_tail(journal, tmp_path).poll()
    job = journal.job(JOB)
    assert job and job.phase == "exporting"
    wanted = {"committed_step": 1, "valid_loss": 2.5, "plan": {"num_slots": 3}, "exports": exports}
    assert {name: job.engine[name] for name in wanted} == wanted
    assert job.engine["step"] == 1 and job.engine["tokens_seen"] > 0
