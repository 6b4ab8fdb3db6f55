"""Limits pause a run between its steps, and say which one and by how much."""

import json
import shutil
from pathlib import Path
from typing import Any

from fake_engine import undisturbed_weight
from headrace.engine import RunEvent
from headrace.service.daemon import Daemon
from headrace.service.event_log import EventLog
from headrace.service.run_limits import RunLimits
from real_daemon import (
    add_job,
    make_daemon,
    messages,
    until_status,
    use,
    weight,
)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def limits_of(tmp_path: Path, clock: Clock, **limits: Any) -> RunLimits:
    log = tmp_path / "events.jsonl"
    return RunLimits(limits, log=log, places=[tmp_path], clock=clock)


def test_hours_count_the_steps_of_earlier_runs_and_the_time_of_this_one(tmp_path: Path) -> None:
    with EventLog(tmp_path / "events.jsonl") as log:
        for step in (1, 2):
            data = {"step_seconds": 1500.0}
            log.append(RunEvent(type="metrics", message="", step=step, data=data))
    clock = Clock()
    limits = limits_of(tmp_path, clock, max_hours=1)
    clock.seconds = 599
    assert limits.reached() is None
    clock.seconds = 601
    told: list[RunEvent] = []
    assert limits.check(told.append) == "pause"
    assert told[0].level == "warn" and "max_hours is 1" in told[0].message


def test_space_that_must_stay_free_is_looked_at_on_every_drive(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert limits_of(tmp_path, Clock(), min_free_disk=free // 2).reached() is None
    reason = limits_of(tmp_path, Clock(), min_free_disk=2 * free).reached()
    assert reason and str(tmp_path) in reason and str(2 * free) in reason


def test_nothing_asked_is_no_limit(tmp_path: Path) -> None:
    clock = Clock()
    limits = RunLimits(None, log=tmp_path / "none", places=[tmp_path], clock=clock)
    clock.seconds = 1e9
    assert limits.reached() is None


def test_a_job_at_its_limit_is_paused_and_goes_on_when_it_gets_more(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon, limits={"max_hours": 1e-9})
        await until_status(daemon, job_id, "paused")
        assert "limits.max_hours" in messages(daemon, job_id)
        daemon.journal.set_fields(
            job_id, request={"model": "tiny", "training_file": "file-1", "limits": {"max_hours": 1}}
        )
        daemon.journal.move(job_id, "queued")
        daemon.wake()
        await until_status(daemon, job_id, "succeeded")
        assert weight(daemon, job_id) == undisturbed_weight(4)

    use(make_daemon(tmp_path), body)


def test_limits_go_to_the_worker_with_every_run(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        free = shutil.disk_usage(tmp_path).free
        job_id = add_job(daemon, limits={"min_free_disk": 4 * free})
        await until_status(daemon, job_id, "paused")
        spec = json.loads((daemon.settings.jobs_dir / job_id / "spec.json").read_text())
        assert "min_free_disk" not in spec and "min_free_disk" in messages(daemon, job_id)

    use(make_daemon(tmp_path), body)
