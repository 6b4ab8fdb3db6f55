import asyncio
import errno
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from fake_engine import undisturbed_weight
from fakes_daemon import some_job
from headrace.service import full_disk, preparer, run_loop
from headrace.service.asked_stop import AskedStop
from headrace.service.child import child_environment
from headrace.service.daemon import Daemon
from headrace.service.data_dir import DaemonRunning, DataDirUnusable
from headrace.service.database import migrate
from headrace.service.events import Hub
from headrace.service.jobs import IllegalMove
from headrace.service.journal import Journal
from headrace.service.lockfile import LockFile
from headrace.service.tail import Tail
from headrace.service.worker import Worker
from headrace.storage import StoreError
from real_daemon import (
    add_job,
    job,
    make_daemon,
    make_settings,
    messages,
    until,
    until_status,
    use,
    weight,
)


def test_job_is_prepared_run_and_recorded(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        done = await until_status(daemon, job_id, "succeeded", "failed")
        assert done.status == "succeeded", done.error
        assert done.fine_tuned_model == f"ft:tiny:headrace::{job_id}"
        assert done.result_files and done.trained_tokens == 200
        assert (
            done.hyperparameters["gradient_accumulation_steps"]
            == done.hyperparameters["batch_size"]
        )

    use(make_daemon(tmp_path), body)


def test_jobs_run_one_after_the_other_by_priority_then_age(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        first = add_job(daemon)
        await until_status(daemon, first, "running")
        low, high = add_job(daemon), add_job(daemon, priority=5)
        for job_id in (first, low, high):
            await until_status(daemon, job_id, "succeeded")
        assert (job(daemon, low).started_at or 0) >= (job(daemon, high).finished_at or 1 << 40)

    use(make_daemon(tmp_path, script={"steps": 6, "step_seconds": 0.2}), body)


def test_next_job_is_prepared_while_one_trains(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        first = add_job(daemon)
        await until_status(daemon, first, "running")
        second = add_job(daemon)
        spec = daemon.settings.jobs_dir / second / "spec.json"
        await until(spec.exists)
        assert job(daemon, first).status == "running"
        await daemon.stop_job(first, "cancel")
        await until_status(daemon, first, "cancelled")
        await daemon.stop_job(second, "cancel")

    use(make_daemon(tmp_path, script={"steps": 10_000}), body)


def test_job_does_not_run_before_its_preparation_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker waits and the child is done, but its end is seen late."""
    monkeypatch.setattr(preparer, "POLL_SECONDS", 1.5)

    async def body(daemon: Daemon) -> None:
        await until(lambda: not daemon.ready())
        job_id = add_job(daemon)
        while job(daemon, job_id).status == "queued":
            daemon.wake()
            await asyncio.sleep(0.01)
        settled = job(daemon, job_id).hyperparameters
        assert settled["gradient_accumulation_steps"] == settled["batch_size"] == 8
        await until_status(daemon, job_id, "succeeded")

    use(make_daemon(tmp_path), body)


def test_killed_worker_costs_nothing_but_time(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        done = await until_status(daemon, job_id, "succeeded", "failed")
        assert done.status == "succeeded", done.error
        assert weight(daemon, job_id) == undisturbed_weight(5)
        assert "The worker died: signal SIGKILL" in messages(daemon, job_id)
        steps = [event.step for event in daemon.journal.events_since(job_id, 0)
                 if event.type == "metrics"]  # fmt: skip
        assert steps == [1, 2, 3, 4, 5]

    use(make_daemon(tmp_path, script={"steps": 5, "do": {"2": "kill", "4": "torn"}}), body)


def test_worker_that_dies_at_the_same_step_fails_the_job_with_the_cause(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        done = await until_status(daemon, job_id, "succeeded", "failed")
        assert done.error and done.error["code"] == "worker_died"
        assert "SIGKILL" in done.error["message"]
        assert messages(daemon, job_id).count("Resuming from the last commit") == 2

    use(make_daemon(tmp_path, script={"do": {"3": "kill_always"}}), body)


def test_failure_of_the_run_is_the_failure_of_the_job(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        done = await until_status(daemon, job_id, "succeeded", "failed")
        assert done.error == {"code": "value_error", "message": "bad rows", "param": None}
        await until(lambda: not daemon.ready())

    use(make_daemon(tmp_path, script={"do": {"2": "bad rows"}}), body)


def test_refused_data_fail_the_job_naming_the_file(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        done = await until_status(daemon, job_id, "succeeded", "failed")
        assert done.error == {
            "code": "value_error",
            "message": "line 7: no assistant turn",
            "param": "training_file",
        }

    use(make_daemon(tmp_path, script={"prepare": "refuse"}), body)


def test_killed_preparation_is_done_again(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        done = await until_status(daemon, add_job(daemon), "succeeded", "failed")
        assert done.status == "succeeded", done.error

    use(make_daemon(tmp_path, script={"prepare": "kill_once"}), body)


def test_full_drive_pauses_a_job_which_resumes_where_it_was(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        held = await until_status(daemon, job_id, "paused", "failed")
        assert held.status == "paused" and "Free some space" in messages(daemon, job_id)
        daemon.journal.move(job_id, "queued")
        daemon.wake()
        await until_status(daemon, job_id, "succeeded")
        assert weight(daemon, job_id) == undisturbed_weight(4)

    use(make_daemon(tmp_path, script={"do": {"3": "no_space"}}), body)


def test_job_that_cannot_be_followed_ends_alone_and_the_queue_goes_on(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        await until_status(daemon, job_id, "running")
        line = {"seq": 1 << 40, "at": 1.0, "type": "result", "level": "info", "message": "",
                "step": None, "data": {"outcome": "unheard of"}}  # fmt: skip
        with (daemon.settings.jobs_dir / job_id / "events.jsonl").open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
        done = await until_status(daemon, job_id, "failed")
        assert done.error and done.error["code"] == "internal"
        (daemon.settings.data_dir / "script.json").write_text("{}")
        await until_status(daemon, add_job(daemon), "succeeded")

    use(make_daemon(tmp_path, script={"steps": 400, "step_seconds": 0.05}), body)


def test_log_that_cannot_be_read_ends_its_job_and_the_queue_goes_on(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        await until_status(daemon, job_id, "running")
        log = daemon.settings.jobs_dir / job_id / "events.jsonl"
        log.rename(log.with_suffix(".away"))
        log.mkdir()
        done = await until_status(daemon, job_id, "failed")
        assert done.error and done.error["code"] == "internal"
        (daemon.settings.data_dir / "script.json").write_text("{}")
        await until_status(daemon, add_job(daemon), "succeeded")

    use(make_daemon(tmp_path, script={"steps": 400, "step_seconds": 0.05}), body)


def test_job_that_cannot_be_prepared_ends_alone_and_the_queue_goes_on(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        first = add_job(daemon, in_the_way=True)
        done = await until_status(daemon, first, "failed")
        assert done.error and done.error["code"] == "internal"
        await until_status(daemon, add_job(daemon), "succeeded")

    use(make_daemon(tmp_path), body)


def test_death_of_prepare_fails_its_job_only(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        done = await until_status(daemon, job_id, "succeeded", "failed")
        assert done.error and done.error["code"] == "prepare_died"
        assert "SIGKILL" in done.error["message"]
        (daemon.settings.data_dir / "script.json").write_text("{}")
        await until_status(daemon, add_job(daemon), "succeeded")

    use(make_daemon(tmp_path, script={"prepare": "kill"}), body)


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ({"do": {"3": "fail"}}, "the script wants a failure"),
        ({"do": {"3": "kill_always"}}, "died 3 times without progress"),
        ({"prepare": "refuse"}, "line 7: no assistant turn"),
        ({"prepare": "kill"}, "SIGKILL"),
    ],
)
def test_a_failure_is_told_once_however_it_came(
    tmp_path: Path, script: dict[str, Any], cause: str
) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        done = await until_status(daemon, job_id, "succeeded", "failed")
        assert done.error and cause in done.error["message"]
        events = daemon.journal.events_since(job_id, 0)
        (told,) = [event for event in events if event.level == "error"]
        assert told.type == "status" and cause in told.message
        repeated = [event for event in events if done.error["message"] in event.message]
        assert repeated == [told]

    use(make_daemon(tmp_path, script=script), body)


@pytest.mark.parametrize("status", ["queued", "validating_files"])
def test_cancel_ends_a_job_that_is_being_prepared(tmp_path: Path, status: str) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon, status=status)
        await until(lambda: job(daemon, job_id).phase == "tokenizing")
        await daemon.stop_job(job_id, "cancel")
        assert job(daemon, job_id).status == "cancelled"
        (daemon.settings.data_dir / "script.json").write_text("{}")
        await until_status(daemon, add_job(daemon), "succeeded")
        assert job(daemon, job_id).status == "cancelled"

    use(make_daemon(tmp_path, script={"prepare_seconds": 60}), body)


def test_pause_and_resume_lose_nothing(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        await until(lambda: job(daemon, job_id).engine.get("step", 0) >= 2)
        await daemon.stop_job(job_id, "pause")
        paused = await until_status(daemon, job_id, "paused")
        assert paused.engine["step"] < 60
        daemon.journal.move(job_id, "queued")
        daemon.wake()
        await until_status(daemon, job_id, "succeeded")
        assert weight(daemon, job_id) == undisturbed_weight(60)

    use(make_daemon(tmp_path, script={"steps": 60, "step_seconds": 0.03}), body)


def test_cancel_of_a_running_and_of_a_paused_job(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        running, paused = add_job(daemon), add_job(daemon)
        await daemon.stop_job(paused, "pause")
        await until(lambda: job(daemon, running).engine.get("step", 0) >= 1)
        await daemon.stop_job(running, "cancel")
        await until_status(daemon, running, "cancelled")
        await daemon.stop_job(paused, "cancel")
        assert job(daemon, paused).status == "cancelled"

    use(make_daemon(tmp_path, script={"steps": 10_000}), body)


def test_a_cancel_is_not_undone_by_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        await until_status(daemon, job_id, "running")
        with monkeypatch.context() as patch:  # the step in hand is a long one
            patch.setattr(Worker, "stop_job", lambda *_: None)
            await daemon.stop_job(job_id, "pause")
            await daemon.stop_job(job_id, "cancel")
            with pytest.raises(IllegalMove, match="being cancelled"):
                await daemon.stop_job(job_id, "pause")
        await daemon.stop_job(job_id, "cancel")
        await until_status(daemon, job_id, "cancelled", "paused")
        assert job(daemon, job_id).status == "cancelled"
        await until(lambda: not (daemon.settings.jobs_dir / job_id / "stop.json").exists())

    use(make_daemon(tmp_path, script={"steps": 10_000}), body)


def test_a_cancel_is_taken_on_a_full_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise OperationalError("", None, error)

    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        await until_status(daemon, job_id, "running")
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "set_fields", full)
            await daemon.stop_job(job_id, "cancel")
        await until_status(daemon, job_id, "cancelled")

    use(make_daemon(tmp_path, script={"steps": 10_000}), body)


@pytest.mark.parametrize(("asked", "becomes"), [("cancel", "cancelled"), ("pause", "paused")])
def test_what_was_asked_outlives_the_death_of_daemon_and_worker(
    tmp_path: Path, asked: Any, becomes: str
) -> None:
    daemon = make_daemon(tmp_path)
    job_dir = daemon.settings.jobs_dir / "ftjob-1"
    job_dir.mkdir(parents=True)
    AskedStop(job_dir).keep(asked)
    journal = Journal.open(daemon.settings.database_path, Hub())
    journal.add_job(some_job(id="ftjob-1", status="running"))
    journal.close()

    async def body(daemon: Daemon) -> None:
        await until_status(daemon, "ftjob-1", becomes, "failed", "succeeded")
        assert job(daemon, "ftjob-1").status == becomes
        await until(lambda: AskedStop(job_dir).read() is None)

    use(daemon, body)


def test_cancel_is_kept_when_the_worker_dies_before_it_obeys(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        await until(lambda: job(daemon, job_id).engine.get("step") == 1)
        await daemon.stop_job(job_id, "cancel")
        os.kill(daemon.status()["worker"]["pid"], signal.SIGKILL)
        await until_status(daemon, job_id, "cancelled")

    use(make_daemon(tmp_path, script={"do": {"2": "hang"}}), body)


def test_stop_finishes_the_step_and_the_next_start_resumes(tmp_path: Path) -> None:
    script = {"steps": 40, "step_seconds": 0.03}
    ids: list[str] = []

    async def first(daemon: Daemon) -> None:
        ids.append(add_job(daemon))
        await until(lambda: job(daemon, ids[0]).engine.get("step", 0) >= 2)

    async def second(daemon: Daemon) -> None:
        assert job(daemon, ids[0]).status in ("queued", "running")
        await until_status(daemon, ids[0], "succeeded")
        assert weight(daemon, ids[0]) == undisturbed_weight(40)

    use(make_daemon(tmp_path, script=script), first)
    use(make_daemon(tmp_path, script=script), second)


SERVE = """
import asyncio, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from real_daemon import add_job, make_daemon

async def main():
    daemon = make_daemon(Path(sys.argv[1]), script=json.loads(sys.argv[3]))
    await daemon.start()
    print(add_job(daemon), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_killed_daemon_leaves_no_phantom_and_the_next_one_resumes(tmp_path: Path) -> None:
    script = {"steps": 40, "step_seconds": 0.05}
    here = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", SERVE, str(tmp_path), here, json.dumps(script)]
    dead = subprocess.Popen(command, stdout=subprocess.PIPE, env=child_environment({}))
    assert dead.stdout
    job_id = dead.stdout.readline().decode().strip()
    committed = tmp_path / "data" / "jobs" / job_id / "committed.json"

    async def body(daemon: Daemon) -> None:
        assert job(daemon, job_id).status == "running"
        await until_status(daemon, job_id, "succeeded")
        assert weight(daemon, job_id) == undisturbed_weight(40)
        said = messages(daemon, job_id)
        assert "interrupted at step" in said or "The daemon was restarted" in said
        steps = [event.step for event in daemon.journal.events_since(job_id, 0)
                 if event.type == "metrics"]  # fmt: skip
        assert steps == list(range(1, 41))

    async def wait() -> None:
        await until(committed.exists)

    asyncio.run(wait())
    dead.kill()
    dead.wait()
    dead.stdout.close()
    use(make_daemon(tmp_path, script=script), body)


def test_second_daemon_on_the_same_data_is_refused_naming_the_first(tmp_path: Path) -> None:
    daemon = make_daemon(tmp_path)
    with LockFile(daemon.settings.data_dir / "lock"):
        with pytest.raises(DaemonRunning, match=f"process {os.getpid()}"):
            asyncio.run(daemon.start())


@pytest.mark.parametrize("place", ["", "jobs", "headrace.db", "lock"])
def test_data_directory_of_no_use_stops_the_start_with_its_name(tmp_path: Path, place: str) -> None:
    settings = make_settings(tmp_path)
    in_the_way = settings.data_dir / place
    in_the_way.parent.mkdir(exist_ok=True)
    if place == "lock":
        in_the_way.mkdir()
    else:
        in_the_way.write_text("something else, and longer than the header of a database" * 9)
    with pytest.raises(DataDirUnusable, match=str(settings.data_dir)):
        asyncio.run(Daemon(settings).start())


def test_database_of_a_newer_version_stops_the_start_with_what_to_do(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    settings.data_dir.mkdir(exist_ok=True)
    migrate(settings.database_path)
    with closing(sqlite3.connect(settings.database_path)) as connection:
        connection.execute("update alembic_version set version_num = 'v9999'")
        connection.commit()
    with pytest.raises(DataDirUnusable, match="Start the version that made it"):
        asyncio.run(Daemon(settings).start())


def test_volume_that_is_not_there_stops_the_start_with_its_name(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, volumes=(str(tmp_path / "no-drive"),))
    for _ in range(2):
        with pytest.raises(StoreError, match="no-drive"):
            asyncio.run(Daemon(settings).start())


def test_readiness_tells_why_not(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        await until(lambda: "exit status 1" in " ".join(daemon.ready()))

    use(make_daemon(tmp_path, engine="fake_engine:missing"), body)


def test_status_tells_of_worker_device_storage_and_disk(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        await until(lambda: not daemon.ready())
        await until_status(daemon, add_job(daemon), "succeeded")
        status = daemon.status()
        assert status["worker"]["last_death"] == "signal SIGKILL"
        assert status["device"]["type"] == "cpu" and status["disk"]["free_bytes"] > 0
        assert status["storage"][0]["active"] in ("direct", "buffered")

    use(make_daemon(tmp_path, script={"do": {"1": "kill"}}), body)


def test_a_hung_worker_whose_job_is_paused_meanwhile_leaves_the_reason(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        await until(lambda: job(daemon, job_id).engine.get("step", 0) == 1)
        await daemon.stop_job(job_id, "pause")
        await until_status(daemon, job_id, "paused")
        assert "made no progress" in messages(daemon, job_id)

    script = {"do": {"2": "hang"}}
    use(make_daemon(tmp_path, script=script, hang_seconds=1.0), body)


def test_a_job_that_finds_no_room_for_its_data_waits_paused(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        held = await until_status(daemon, job_id, "paused", "failed")
        assert held.status == "paused" and "want of room" in messages(daemon, job_id)
        (daemon.settings.data_dir / "script.json").write_text("{}")
        daemon.journal.move(job_id, "queued")
        daemon.wake()
        await until_status(daemon, job_id, "succeeded")

    use(make_daemon(tmp_path, script={"prepare": "no_space"}), body)


def test_a_daemon_says_why_it_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(daemon: Daemon) -> None:
        await until(lambda: not daemon.ready())

        def refuse() -> None:
            raise OperationalError("insert", {}, Exception("attempt to write a readonly database"))

        monkeypatch.setattr(daemon.journal, "check_writable", refuse)
        monkeypatch.setattr(daemon, "site", replace(daemon.site, device="cuda"))
        reasons = " ".join(daemon.ready())
        assert "readonly database" in reasons and "shows no GPU" in reasons

    use(make_daemon(tmp_path), body)


def test_a_volume_that_is_gone_is_a_reason_not_to_be_ready(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> None:
        await until(lambda: not daemon.ready())
        volume = Path(daemon.settings.volume_list[0])
        volume.rename(tmp_path / "elsewhere")
        assert f"volume {volume} is not there any more" in " ".join(daemon.ready())
        assert daemon.status()["storage"][0]["free_bytes"] == 0

    use(make_daemon(tmp_path), body)


def no_room() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def interrupted(tmp_path: Path) -> str:
    """A job that was running when its daemon died."""
    ids: list[str] = []

    async def body(daemon: Daemon) -> None:
        ids.append(add_job(daemon))
        await until_status(daemon, ids[0], "running")

    daemon = make_daemon(tmp_path, script={"steps": 10_000})
    use(daemon, body)
    journal = Journal.open(daemon.settings.database_path, Hub())
    journal.move(ids[0], "running")
    journal.close()
    return ids[0]


def failing(method: Callable[..., Any], *errors: Exception) -> Callable[..., Any]:
    """The method, which raises these errors first."""
    left = list(errors)

    def call(*given: Any, **named: Any) -> Any:
        if left:
            raise left.pop()
        return method(*given, **named)

    return call


def test_a_queue_that_is_taken_up_on_a_full_drive_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = interrupted(tmp_path)
    monkeypatch.setattr(full_disk, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(Tail, "settle", failing(Tail.settle, no_room(), no_room()))

    async def body(daemon: Daemon) -> None:
        await until_status(daemon, job_id, "succeeded")
        assert not daemon.ready()

    use(make_daemon(tmp_path), body)


def test_a_job_that_cannot_be_taken_up_fails_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = interrupted(tmp_path)
    monkeypatch.setattr(Tail, "settle", failing(Tail.settle, ValueError("a damaged log")))

    async def body(daemon: Daemon) -> None:
        failed = await until_status(daemon, job_id, "failed", "succeeded")
        assert failed.error and "a damaged log" in failed.error["message"]
        await until_status(daemon, add_job(daemon), "succeeded")

    use(make_daemon(tmp_path), body)


def test_a_job_that_is_begun_on_a_full_drive_runs_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_loop, "apply_limits", failing(run_loop.apply_limits, no_room()))

    async def body(daemon: Daemon) -> None:
        job_id = add_job(daemon)
        await until_status(daemon, job_id, "succeeded", "failed")
        assert job(daemon, job_id).status == "succeeded", job(daemon, job_id).error
        assert "full; waiting to resume" in messages(daemon, job_id)

    use(make_daemon(tmp_path), body)
