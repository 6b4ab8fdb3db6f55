"""Stories of jobs that ended long ago become short, and whoever comes back to them is told so."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes_daemon import some_job
from headrace.service import retention
from headrace.service.events import Hub
from headrace.service.journal import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal.open(tmp_path / "a.db", Hub())
    yield opened
    opened.close()


def finished_job(journal: Journal, steps: int) -> str:
    job = journal.add_job(some_job(status="running"))
    for step in range(1, steps + 1):
        for kind in ("phase", "metrics", "commit"):
            journal.add_event(job.id, type=kind, level="info", message="", step=step, data={})
    journal.add_event(job.id, type="message", level="warn", message="look at row 7")
    journal.add_event(job.id, type="eval", level="info", message="", step=steps, data={})
    journal.move(job.id, "succeeded")
    return job.id


def kinds(journal: Journal, job_id: str) -> list[str]:
    return [event.type for event in journal.events_since(job_id, 0)]


def test_an_old_story_keeps_its_words_and_a_curve(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "KEPT_STEPS", 4)
    monkeypatch.setattr(retention, "CHUNK", 3)
    job_id = finished_job(journal, 9)
    assert journal.shorten_stories(ended_before=time.time() - 60) == 0, "it ended just now"
    assert journal.shorten_stories(ended_before=time.time() + 60) == 1
    left = journal.events_since(job_id, 0)
    assert [e.step for e in left if e.type == "metrics"] == [3, 6, 9]
    assert [e.type for e in left if e.type != "metrics"] == ["status", "message", "eval", "status"]
    assert journal.shortened_seq(job_id) == 28  # the last commit, after three events a step
    assert journal.shorten_stories(ended_before=time.time() + 60) == 0, "done once"


def test_what_a_crash_left_over_is_removed_the_next_time(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "CHUNK", 2)
    job_id = finished_job(journal, 5)

    def die(self: Journal, job_id: str, **values: int) -> None:
        raise RuntimeError("the power went")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(Journal, "_mark", die)
        journal.shorten_stories(ended_before=time.time() + 60)
    assert kinds(journal, job_id).count("phase") == 5, "nothing goes before viewers can be told"
    journal.shorten_stories(ended_before=time.time() + 60)
    assert "phase" not in kinds(journal, job_id) and "commit" not in kinds(journal, job_id)
    assert kinds(journal, job_id).count("metrics") == 5


def test_many_old_stories_are_shortened_a_few_at_a_time_the_oldest_first(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "JOBS_AT_ONCE", 2)
    ids = [finished_job(journal, 3) for _ in range(5)]
    for place, job_id in enumerate(reversed(ids)):
        journal.set_fields(job_id, finished_at=1000 + place)
    done = []
    while journal.shorten_stories(ended_before=time.time()):
        done.append([one for one in ids if "commit" not in kinds(journal, one)])
    assert done == [ids[3:], ids[1:], ids]


def test_a_running_job_keeps_everything(journal: Journal) -> None:
    job = journal.add_job(some_job(status="running"))
    journal.add_event(job.id, type="phase", level="info", message="training")
    journal.shorten_stories(ended_before=time.time() + 1e6)
    assert "phase" in kinds(journal, job.id) and journal.shortened_seq(job.id) == 0


def test_numbers_are_not_given_out_again(journal: Journal) -> None:
    job_id = finished_job(journal, 2)
    newest = journal.last_event_seq(job_id)
    journal.shorten_stories(ended_before=time.time() + 60)
    added = journal.add_event(job_id, type="message", level="info", message="freed")
    assert added and added.seq == newest + 1
