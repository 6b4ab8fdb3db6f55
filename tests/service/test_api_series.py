import json
from collections.abc import Iterator

import httpx2
import pytest

from fake_engine import step_report
from fakes_daemon import FakeDaemon, calling, some_job

Served = tuple[FakeDaemon, httpx2.Client, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A job of 100 steps, evaluated after every tenth, with a word now and then."""
    daemon = FakeDaemon(tmp_path_factory.mktemp("series"))
    with calling(daemon) as client:
        journal = daemon.journal
        job = journal.add_job(some_job(status="running"))
        for step in range(1, 101):
            data = {"train_loss": 4.0 / step, **step_report(step, 100)}
            journal.add_event(
                job.id, type="metrics", level="info", message="m", step=step, data=data
            )
            journal.add_event(job.id, type="commit", level="info", message="safe", step=step)
            if step % 10 == 0:
                journal.add_event(
                    job.id, type="eval", level="info", message="e", step=step,
                    data={"valid_loss": 1.0 + step},
                )  # fmt: skip
        yield daemon, client, f"/v1/fine_tuning/jobs/{job.id}"


def test_a_jobs_numbers_come_as_columns(served: Served) -> None:
    daemon, client, path = served
    found = client.get(f"{path}/series").json()
    assert found["steps"]["step"] == list(range(1, 101)) and found["every"] == 1
    assert found["steps"]["train_loss"][3] == 1.0
    none = ("valid_mean_token_accuracy", "valid_reward_margin", "valid_reward_accuracy")
    assert found["evaluations"] == {
        "step": list(range(10, 101, 10)),
        "valid_loss": [1.0 + step for step in range(10, 101, 10)],
        **{name: [None] * 10 for name in none},
    }
    assert found["newest"]["step"] == 100 and found["newest"]["links"]
    job_id = path.rpartition("/")[2]
    assert found["last_seq"] == daemon.journal.last_event_seq(job_id)


def test_a_long_run_is_thinned_and_keeps_its_last_step(served: Served) -> None:
    _, client, path = served
    found = client.get(f"{path}/series", params={"points": 11}).json()
    steps = found["steps"]["step"]
    assert found["every"] == 10 and len(steps) <= 12 and steps[-1] == 100


def test_a_story_that_was_shortened_is_drawn_with_what_is_left(served: Served) -> None:
    daemon, client, _ = served
    job = daemon.journal.add_job(some_job(status="succeeded"))
    for step in range(7, 1000, 7):  # what shortening has left of a thousand
        data = {"train_loss": 1.0}
        daemon.journal.add_event(
            job.id, type="metrics", level="info", message="m", step=step, data=data
        )
    path = f"/v1/fine_tuning/jobs/{job.id}/series"
    found = client.get(path, params={"points": 200}).json()
    assert found["steps"]["step"] == list(range(7, 1000, 7))


def test_a_part_of_the_run_comes_whole(served: Served) -> None:
    _, client, path = served
    found = client.get(f"{path}/series", params={"points": 20, "first": 21, "last": 40}).json()
    assert found["every"] == 1 and found["steps"]["step"] == list(range(21, 41))
    assert found["evaluations"]["step"] == [30, 40]


def test_a_job_without_steps_has_empty_columns(served: Served) -> None:
    daemon, client, _ = served
    job = daemon.journal.add_job(some_job())
    found = client.get(f"/v1/fine_tuning/jobs/{job.id}/series").json()
    assert found["steps"]["step"] == [] and found["newest"] is None
    assert client.get("/v1/fine_tuning/jobs/ftjob-none/series").status_code == 404
    daemon.journal.move(job.id, "cancelled")


def test_the_story_leaves_the_numbers_out(served: Served) -> None:
    daemon, _, path = served
    job_id = path.rpartition("/")[2]
    story = daemon.journal.story(job_id, limit=5)
    assert [event.type for event in story] == ["eval"] * 5
    assert [event.step for event in story] == [100, 90, 80, 70, 60]
    rest = daemon.journal.story(job_id, after_id=story[-1].id, limit=50)
    assert [event.step for event in rest] == [50, 40, 30, 20, 10, None]
    assert rest[-1].type == "status"


def test_the_newest_report_on_each_file_is_found(served: Served) -> None:
    daemon, _, path = served
    job_id = path.rpartition("/")[2]
    for param, rows in (("training_file", 1), ("validation_file", 2), ("training_file", 3)):
        data = {"histogram": {"32": rows}, "rows": rows}
        message = f"{param}: {rows} rows"
        daemon.journal.add_event(job_id, type="message", level="info", message=message, data=data)
    daemon.journal.add_event(job_id, type="message", level="info", message="nothing", data={})
    found = daemon.journal.data_reports(job_id)
    assert [(one["param"], one["rows"]) for one in found] == [
        ("training_file", 3),
        ("validation_file", 2),
    ]


def test_the_timeline_of_the_newest_step_is_what_the_engine_left(served: Served) -> None:
    daemon, client, path = served
    job_id = path.rpartition("/")[2]
    empty = client.get(f"{path}/timeline").json()
    assert empty == {
        "object": "fine_tuning.job.timeline",
        "step": None,
        "seconds": None,
        "lanes": {},
    }
    left = {"step": 7, "seconds": 0.5, "lanes": {"compute": [["forward", 0.0, 0.2]]}}
    folder = daemon.settings.jobs_dir / job_id
    folder.mkdir(parents=True)
    (folder / "timeline.json").write_text(json.dumps(left))
    assert client.get(f"{path}/timeline").json() == {"object": "fine_tuning.job.timeline", **left}
