import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes_daemon import some_job
from headrace.service.job_table import Replay
from headrace.service.jobs import EventRecord, FileRecord, IllegalMove, JobRecord
from headrace.service.journal import Journal


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[EventRecord] = []

    def publish(self, event: EventRecord) -> None:
        self.events.append(event)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def journal(tmp_path: Path, heard: Heard) -> Iterator[Journal]:
    journal = Journal.open(tmp_path / "headrace.db", heard)
    yield journal
    journal.close()


def metrics(journal: Journal, job: JobRecord, *, step: int, seq: int | None = None) -> Any:
    """Add a metrics event."""
    return journal.add_event(
        job.id,
        type="metrics",
        level="info",
        message=f"Step {step}",
        step=step,
        data={"step": step},
        worker_seq=seq,
    )


def some_file(file_id: str, **changed: Any) -> FileRecord:
    """A file's record."""
    values: dict[str, Any] = {
        "id": file_id,
        "bytes": 3,
        "created_at": 1,
        "filename": "a.jsonl",
        "purpose": "fine-tune",
        "path": "/nowhere",
        "sha256": "00",
    }
    return FileRecord(**values | changed)


def test_a_job_comes_back_as_it_was_added(journal: Journal) -> None:
    job = some_job(
        metadata={"a": "b"},
        method={"type": "supervised"},
        hyperparameters={"n_epochs": 3},
        request={"model": "tiny"},
        error={"code": "x"},
        engine={"plan": {"slots": 3}},
        result_files=["file-9"],
        priority=2,
        suffix="s",
    )
    journal.add_job(job)
    assert journal.job(job.id) == job
    assert journal.job("ftjob-none") is None


def test_a_move_and_its_event_come_together(journal: Journal, heard: Heard) -> None:
    job = journal.add_job(some_job())
    moved = journal.move(job.id, "running", phase="training")
    assert (moved.status, moved.phase) == ("running", "training")
    assert moved.started_at is not None and moved.finished_at is None
    newest = journal.events(job.id)[0]
    assert newest.data == {"status": "running", "previous": "queued"}
    assert heard.events[-1] == newest


def test_an_illegal_move_changes_nothing(journal: Journal, heard: Heard) -> None:
    job = journal.add_job(some_job(status="succeeded"))
    with pytest.raises(IllegalMove):
        journal.move(job.id, "running")
    assert journal.job(job.id) == job
    assert len(journal.events(job.id)) == len(heard.events) == 1


def test_an_end_is_dated_and_a_second_start_keeps_the_first_date(journal: Journal) -> None:
    job = journal.add_job(some_job(started_at=5))
    assert journal.move(job.id, "running").started_at == 5
    failed = journal.move(job.id, "failed", error={"message": "the drive is full"})
    assert failed.finished_at is not None
    event = journal.events(job.id)[0]
    assert (event.level, event.message) == ("error", "The job failed: the drive is full")


def test_an_event_of_the_worker_is_taken_in_once(journal: Journal, heard: Heard) -> None:
    job = journal.add_job(some_job())
    assert metrics(journal, job, step=1, seq=1)
    assert metrics(journal, job, step=1, seq=1) is None
    assert journal.last_worker_seq(job.id) == 1
    assert len(journal.events(job.id, type="metrics")) == 1
    assert len(heard.events) == 2


def test_a_step_done_again_replaces_the_one_shown(journal: Journal) -> None:
    job = journal.add_job(some_job())
    for seq, step in enumerate((1, 2, 2, 3), start=1):
        metrics(journal, job, step=step, seq=seq)
    shown = journal.events(job.id, type="metrics")
    assert [(event.step, event.worker_seq) for event in shown] == [(3, 4), (2, 3), (1, 1)]
    assert metrics(journal, job, step=2, seq=2) is None, "a replaced event came back"


def test_numbers_of_events_are_never_given_twice(journal: Journal) -> None:
    job = journal.add_job(some_job())
    seqs = [metrics(journal, job, step=1).seq for _ in range(3)]
    assert seqs == [2, 3, 4]
    assert journal.last_event_seq(job.id) == 4


def test_pages_of_events_walk_into_the_past(journal: Journal) -> None:
    job = journal.add_job(some_job())
    for step in range(1, 8):
        metrics(journal, job, step=step)
    first = journal.events(job.id, limit=3)
    second = journal.events(job.id, after_id=first[-1].id, limit=3)
    assert [event.seq for event in [*first, *second]] == [8, 7, 6, 5, 4, 3]


@pytest.mark.parametrize(
    "stranger", ["ftevent-1", "ftevent-x-1", "", "ftevent-{}-01", "ftevent-{}-" + "9" * 30]
)
def test_a_page_after_a_stranger_is_refused(journal: Journal, stranger: str) -> None:
    job = journal.add_job(some_job())
    with pytest.raises(KeyError):
        journal.events(job.id, after_id=stranger.format(job.id.removeprefix("ftjob-")))


def test_a_replay_is_oldest_first(journal: Journal) -> None:
    job = journal.add_job(some_job())
    for step in (1, 2, 3):
        metrics(journal, job, step=step)
    assert [event.step for event in journal.events_since(job.id, 2)] == [2, 3]


def test_the_queue_goes_by_priority_then_by_age(journal: Journal) -> None:
    old, young, urgent = (journal.add_job(some_job(priority=p)) for p in (0, 0, 5))
    journal.add_job(some_job(status="paused", priority=9))
    assert [job.id for job in journal.queue()] == [urgent.id, old.id, young.id]
    first = journal.next_queued()
    assert first and first.id == urgent.id


def test_a_restart_finds_the_jobs_that_were_under_way(journal: Journal) -> None:
    statuses = ("queued", "running", "paused", "validating_files", "succeeded")
    for status in statuses:
        journal.add_job(some_job(status=status))
    assert [job.status for job in journal.unfinished()] == ["running", "validating_files"]


def test_jobs_are_found_by_metadata(journal: Journal) -> None:
    tagged = journal.add_job(some_job(metadata={"a": "b", "odd key]": 'x"y'}))
    journal.add_job(some_job(metadata={"a": "c"}))
    bare = journal.add_job(some_job())
    assert [job.id for job in journal.jobs(metadata={"a": "b", "odd key]": 'x"y'})] == [tagged.id]
    assert [job.id for job in journal.jobs(without_metadata=True)] == [bare.id]


def test_pages_of_jobs_are_newest_first(journal: Journal) -> None:
    ids = [journal.add_job(some_job()).id for _ in range(5)]
    page = journal.jobs(limit=2)
    rest = journal.jobs(after=page[-1].id)
    assert [job.id for job in [*page, *rest]] == ids[::-1]
    with pytest.raises(KeyError):
        journal.jobs(after="ftjob-none")


def test_a_request_is_recognised_for_a_while_only(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = Replay(key="k", body_hash="b")
    job = journal.add_job(some_job(), replay=replay)
    assert journal.replayed("k") == (job, "b")
    assert journal.replayed("other") is None
    monkeypatch.setattr("headrace.service.job_table.REPLAY_SECONDS", -1)
    assert journal.replayed("k") is None


def test_a_checkpoint_made_again_keeps_its_id(journal: Journal) -> None:
    job = journal.add_job(some_job())
    made = [
        journal.add_checkpoint(job.id, step=step, name=f"n{step}", path="/p", metrics={"loss": i})
        for i, step in enumerate((5, 10, 5))
    ]
    assert made[0].id == made[2].id
    assert [(c.step, c.metrics["loss"]) for c in journal.checkpoints(job.id)] == [(10, 1), (5, 2)]
    assert journal.checkpoints(job.id, after=made[1].id) == [made[2]]
    assert journal.checkpoint("n5") == journal.checkpoint(made[0].id) == made[2]
    assert journal.remove_checkpoint(made[0].id) and not journal.remove_checkpoint(made[0].id)


def test_files_page_both_ways(journal: Journal) -> None:
    for name in ("file-1", "file-2", "file-3"):
        journal.add_file(some_file(name, purpose="x" if name == "file-2" else "fine-tune"))
    assert [f.id for f in journal.files(after="file-3")] == ["file-2", "file-1"]
    assert [f.id for f in journal.files(after="file-1", newest_first=False)] == ["file-2", "file-3"]
    assert [f.id for f in journal.files(purpose="x")] == ["file-2"]
    assert journal.remove_file("file-2") and journal.file("file-2") is None


def test_files_expire_at_their_time(journal: Journal) -> None:
    journal.add_file(some_file("file-1", expires_at=100))
    journal.add_file(some_file("file-2"))
    assert not journal.expired_files(99)
    assert [file.id for file in journal.expired_files(100)] == ["file-1"]


def test_files_and_models_in_use_are_known(journal: Journal) -> None:
    job = journal.add_job(some_job(training_file="file-1", validation_file="file-2", model="m"))
    journal.add_job(some_job(training_file="file-1", status="failed"))
    for name in ("file-1", "file-2", "m"):
        assert journal.jobs_using(name) == [job.id]


def test_a_model_recorded_again_is_one_model(journal: Journal) -> None:
    job = journal.add_job(some_job())
    for path in ("/a", "/b"):
        journal.add_model(name="ft:x", path=path, job_id=job.id)
    assert [model.path for model in journal.models()] == ["/b"]
    assert journal.remove_model("ft:x") and journal.model("ft:x") is None


def test_engine_values_are_merged(journal: Journal) -> None:
    job = journal.add_job(some_job(engine={"plan": 1}))
    what: dict[str, Any] = {"type": "message", "level": "info", "message": "m", "worker_seq": 1}
    journal.add_event(job.id, **what, engine=lambda shown: {"loss": 2, "was": shown["plan"]})
    journal.add_event(job.id, **what, engine=lambda shown: {"loss": 3})  # it is there already
    found = journal.job(job.id)
    assert found and found.engine == {"plan": 1, "loss": 2, "was": 1}
    assert journal.set_fields(job.id, trained_tokens=4).trained_tokens == 4
    with pytest.raises(KeyError):
        journal.set_fields("ftjob-none", phase="x")


def test_many_threads_write_without_losing_or_doubling(journal: Journal, heard: Heard) -> None:
    job = journal.add_job(some_job())

    def write() -> None:
        for _ in range(20):
            journal.add_event(job.id, type="message", level="info", message="hello")

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.seq for event in heard.events] == list(range(1, 162)), "published out of order"
    assert len(journal.events(job.id, limit=1000)) == 161


def test_the_event_loop_may_call(journal: Journal) -> None:
    job = journal.add_job(some_job())
    assert asyncio.run(journal.call(journal.job, job.id)) == job


def test_what_was_added_survives_kill_9(tmp_path: Path) -> None:
    script = f"""
        import os, signal, sys
        from pathlib import Path
        from headrace.service.events import Hub
        from headrace.service.jobs import JobRecord
        from headrace.service.journal import Journal
        journal = Journal.open(Path({str(tmp_path / "headrace.db")!r}), Hub())
        journal.add_job(JobRecord(id="ftjob-1", status="queued", model="m", training_file="f",
                                  seed=1, created_at=1))
        journal.move("ftjob-1", "running")
        journal.add_event("ftjob-1", type="metrics", level="info", message="m", step=1,
                          worker_seq=1)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    source = next(path for path in sys.path if path.endswith(".src"))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env={"PYTHONPATH": source}, check=False
    )
    assert done.returncode == -9
    journal = Journal.open(tmp_path / "headrace.db", Heard())
    assert [job.status for job in journal.unfinished()] == ["running"]
    assert journal.last_worker_seq("ftjob-1") == 1
    journal.close()
