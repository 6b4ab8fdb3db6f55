"""A job that waits knows its place, what it waits for, and when its turn will come."""

from typing import Any

from fakes_daemon import some_job
from headrace.service.jobs import JobRecord
from headrace.service.queue_times import places, seconds_left

NOW = 1_000_000.0


def job(**engine: Any) -> JobRecord:
    return some_job(engine=engine, hyperparameters={"batch_size": 4, "max_seq_len": 64})


def planned(total_steps: int, seconds: float) -> JobRecord:
    forecast = {"step_seconds": {"expected": seconds}}
    return job(plan={"total_steps": total_steps, "forecast": forecast})


def test_each_starts_when_the_one_before_it_ends() -> None:
    running = job(eta_s=100.0)
    first = planned(10, 2.0)
    second = planned(5, 1.0)
    found = places(running, [first, second], now=NOW)
    assert (found[first.id].position, found[second.id].position) == (1, 2)
    assert found[first.id].estimated_start == NOW + 100
    assert found[first.id].estimated_finish == found[second.id].estimated_start == NOW + 120
    assert found[second.id].estimated_finish == NOW + 125
    assert (found[first.id].waits_for, found[second.id].waits_for) == (running.id, first.id)


def test_nothing_is_told_after_a_job_of_unknown_length() -> None:
    unknown, after = job(), planned(5, 1.0)
    found = places(None, [unknown, after], now=NOW)
    assert found[unknown.id].estimated_start == NOW and found[unknown.id].estimated_finish is None
    assert found[after.id].estimated_start is None and found[after.id].position == 2


def test_steps_that_are_done_do_not_count_again() -> None:
    assert seconds_left(job(step=8, total_steps=10, step_time_s=3.0), []) == 6.0


def test_a_job_without_a_planned_time_is_expected_to_run_like_one_of_its_kind() -> None:
    waiting = job(plan={"total_steps": 10})
    alike = job(step_time_s=0.5)
    other = some_job(model="large", engine={"step_time_s": 9.0})
    assert seconds_left(waiting, [other, alike]) == 5.0
    assert seconds_left(waiting, [other]) is None
