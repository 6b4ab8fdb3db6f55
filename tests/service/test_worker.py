import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_engine import undisturbed_weight
from headrace.engine import TrainConfig
from headrace.service.channel import channel_pair
from headrace.service.child import child_environment
from headrace.service.event_log import EventReader, LoggedEvent
from headrace.service.ipc import Run
from headrace.service.lockfile import is_free
from headrace.service.worker import Worker, WorkerOptions

TENSORBOARD = [{"type": "tensorboard"}]
PATIENCE = 60.0  # seconds until what is awaited counts as lost


def make_job(data_dir: Path, name: str = "ftjob-1", **script: Any) -> Run:
    job_dir = data_dir / "jobs" / name
    job_dir.mkdir(parents=True)
    (job_dir / "script.json").write_text(json.dumps(script))
    spec = job_dir / "spec.json"
    spec.write_text(json.dumps(TrainConfig(model="m", dataset="d").to_dict()))
    return Run(job_id=name, spec_path=str(spec), job_dir=str(job_dir), state_name=name)


def read_events(run: Run) -> list[LoggedEvent]:
    reader = EventReader(Path(run.job_dir) / "events.jsonl")
    return reader.read()


def outcome(run: Run) -> str:
    last = read_events(run)[-1]
    assert last.type == "result"
    return str(last.data["outcome"])


def weight(run: Run) -> int:
    return int(json.loads((Path(run.job_dir) / "committed.json").read_text())["weight"])


def options(data_dir: Path, **given: Any) -> WorkerOptions:
    defaults: dict[str, Any] = {"engine": "fake_engine:run_job", "back_off_seconds": 0.01}
    return WorkerOptions(data_dir=data_dir, **(defaults | given))


def use(worker: Worker, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a test's body beside a living worker, with an end to everything."""

    async def body() -> None:
        worker.start()
        try:
            async with asyncio.timeout(PATIENCE):
                await coroutine
        finally:
            await worker.stop()

    asyncio.run(body())


async def until(condition: Any, seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_process_that_ends_just_after_it_was_ready_is_waited_for_anew(tmp_path: Path) -> None:
    worker = Worker(options(tmp_path))

    async def body() -> None:
        waiting = asyncio.create_task(worker.ready())
        await asyncio.sleep(0)
        worker._ready.set()
        worker._ready.clear()  # before whoever waits has had its turn
        await asyncio.sleep(0.05)
        assert not waiting.done()
        worker._ready.set()
        assert await waiting

    asyncio.run(body())


def test_a_tracker_that_fails_is_a_warning_of_a_job_that_succeeds(tmp_path: Path) -> None:
    good, bad = (
        replace(make_job(tmp_path, name, steps=20, step_seconds=0.05), integrations=TENSORBOARD)
        for name in ("ftjob-good", "ftjob-bad")
    )
    (Path(bad.job_dir) / "tensorboard").write_text("this is no folder")
    worker = Worker(options(tmp_path))

    async def body() -> None:
        for run in (good, bad):
            assert await worker.run(run) is None

    use(worker, body())
    assert list((Path(good.job_dir) / "tensorboard").glob("events.out.*"))
    assert outcome(good) == outcome(bad) == "succeeded"
    warnings = [event.message for event in read_events(bad) if event.level == "warn"]
    assert len(warnings) == 1 and "tensorboard gets no more of this run" in warnings[0]


def test_worker_runs_one_job_after_the_other_in_one_process(tmp_path: Path) -> None:
    runs = [make_job(tmp_path, f"ftjob-{i}") for i in range(2)]
    worker = Worker(options(tmp_path))

    async def body() -> None:
        assert await worker.run(runs[0]) is None
        pid = worker.status()["pid"]
        assert worker.status()["restarts"] == 0
        assert await worker.run(runs[1]) is None
        assert worker.status()["pid"] == pid

    use(worker, body())
    assert [outcome(run) for run in runs] == ["succeeded", "succeeded"]
    assert worker.status()["state"] == "stopped"


def test_killed_worker_is_seen_at_once_and_the_resumed_job_ends_the_same(
    tmp_path: Path,
) -> None:
    run = make_job(tmp_path, steps=5, do={"3": "kill"})
    given = options(tmp_path)
    worker = Worker(given)

    async def body() -> None:
        death = await worker.run(run)
        assert death and "SIGKILL" in death.cause
        assert time.time() - read_events(run)[-1].at < given.hang_seconds / 4, (
            "waited as for a hang"
        )
        assert await worker.run(run) is None

    use(worker, body())
    assert outcome(run) == "succeeded" and weight(run) == undisturbed_weight(5)
    assert [event.step for event in read_events(run) if event.type == "metrics"] == [1, 2, 3, 4, 5]


def test_event_torn_by_the_crash_is_replaced_and_numbers_go_on(tmp_path: Path) -> None:
    run = make_job(tmp_path, steps=4, do={"2": "torn"})
    worker = Worker(options(tmp_path))

    async def body() -> None:
        assert await worker.run(run) is not None
        assert await worker.run(run) is None

    use(worker, body())
    seqs = [event.seq for event in read_events(run)]
    assert seqs == list(range(1, len(seqs) + 1)) and outcome(run) == "succeeded"


def test_hung_run_is_ended_with_its_stacks_in_the_log(tmp_path: Path) -> None:
    run = make_job(tmp_path, do={"2": "hang"})
    worker = Worker(options(tmp_path, hang_seconds=2.0))

    async def body() -> None:
        death = await worker.run(run)
        assert death and "no progress" in death.cause
        assert await worker.run(run) is None

    use(worker, body())
    assert outcome(run) == "succeeded"
    assert "fake_engine.py" in (Path(run.job_dir) / "worker.log").read_text()


def test_planned_long_step_is_no_hang(tmp_path: Path) -> None:
    run = make_job(tmp_path, steps=1, step_seconds=1.5)
    worker = Worker(options(tmp_path, hang_seconds=0.5))

    async def body() -> None:
        assert await worker.run(run, step_seconds=10) is None

    use(worker, body())


def test_time_of_the_longest_step_makes_patience_longer(tmp_path: Path) -> None:
    """The reports of the scripted engine say half a second, so a second's wait is no hang."""
    run = make_job(tmp_path, steps=3, step_seconds=1.2)
    worker = Worker(options(tmp_path, hang_seconds=1.4))

    async def body() -> None:
        assert await worker.run(run) is None
        assert worker._hang_seconds == 1.5

    use(worker, body())


def test_failure_is_a_durable_result_and_the_next_job_gets_a_fresh_process(tmp_path: Path) -> None:
    bad, good = make_job(tmp_path, do={"2": "bad rows"}), make_job(tmp_path, "ftjob-2")
    worker = Worker(options(tmp_path))

    async def body() -> None:
        assert await worker.run(bad) is None
        pid = worker.status()["pid"]
        await until(lambda: worker.status()["pid"] not in (pid, None))
        assert await worker.run(good) is None

    use(worker, body())
    event = read_events(bad)[-1]
    assert event.data == {
        "outcome": "failed",
        "error": {"type": "ValueError", "message": "bad rows"},
    }
    assert "Traceback" in (Path(bad.job_dir) / "worker.log").read_text()
    assert outcome(good) == "succeeded" and worker.status()["last_death"] is None


def test_a_job_right_behind_a_failed_one_is_not_given_to_the_process_that_leaves(
    tmp_path: Path,
) -> None:
    worker = Worker(options(tmp_path))

    async def body() -> None:
        for i in range(3):
            bad = make_job(tmp_path, f"ftjob-bad{i}", do={"1": "bad rows"})
            good = make_job(tmp_path, f"ftjob-good{i}", steps=2)
            assert await worker.run(bad) is None
            assert await worker.run(good) is None
            assert outcome(good) == "succeeded"

    use(worker, body())


def test_lost_device_is_a_death_not_a_failure_of_the_job(tmp_path: Path) -> None:
    run = make_job(tmp_path, steps=4, do={"2": "device_lost"})
    worker = Worker(options(tmp_path))

    async def body() -> None:
        death = await worker.run(run)
        assert death and "device failed" in death.cause
        assert all(event.type != "result" for event in read_events(run))
        assert await worker.run(run) is None

    use(worker, body())
    assert outcome(run) == "succeeded"


@pytest.mark.parametrize(("reason", "ends"), [("cancel", "cancelled"), ("pause", "paused")])
def test_stop_ends_the_job_at_a_step_boundary(tmp_path: Path, reason: Any, ends: str) -> None:
    run = make_job(tmp_path, steps=10_000)
    worker = Worker(options(tmp_path))

    async def body() -> None:
        running = asyncio.create_task(worker.run(run))
        await until(lambda: any(event.type == "commit" for event in read_events(run)))
        worker.stop_job("ftjob-other", "cancel")
        worker.stop_job(run.job_id, reason)
        assert await running is None

    use(worker, body())
    assert outcome(run) == ends
    last = [event.step for event in read_events(run) if event.type == "metrics"][-1]
    assert weight(run) == undisturbed_weight(last or 0)


def test_drain_finishes_the_step_and_commits(tmp_path: Path) -> None:
    run = make_job(tmp_path, steps=10_000)
    worker = Worker(options(tmp_path))

    async def body() -> None:
        running = asyncio.create_task(worker.run(run))
        await until(lambda: any(event.type == "commit" for event in read_events(run)))
        await worker.stop()
        assert await running is None

    use(worker, body())
    assert outcome(run) == "interrupted"
    assert is_free(tmp_path / "worker.lock")


def test_a_process_that_still_loads_its_code_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_load.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    worker = Worker(options(tmp_path, engine="slow_to_load:run_job"))

    async def body() -> None:
        await until(lambda: worker.status()["pid"] is not None)
        started = time.monotonic()
        await worker.stop()
        assert time.monotonic() - started < 60

    use(worker, body())


def test_process_that_cannot_start_is_tried_again_with_growing_pauses(tmp_path: Path) -> None:
    worker = Worker(options(tmp_path, engine="no_such_module:run_job", back_off_seconds=0.05))

    async def body() -> None:
        await until(lambda: worker.status()["restarts"] >= 3)

    use(worker, body())
    assert worker.status()["last_death"] == "exit status 1"
    assert "no_such_module" in (tmp_path / "worker.log").read_text()


def orphan(data_dir: Path, engine: str = "fake_engine:run_job") -> subprocess.Popen[bytes]:
    """A worker whose API has just died: the other end of its socket is closed."""
    api, theirs = channel_pair()
    command = [sys.executable, "-m", "headrace.service.engine_process"]
    command += ["--data-dir", str(data_dir), "--engine", engine, "--fd", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env=child_environment({}), start_new_session=True
        )
    api.close()
    return process


def test_worker_ends_when_its_api_is_gone(tmp_path: Path) -> None:
    assert orphan(tmp_path).wait(PATIENCE) == 0


def test_new_supervisor_ends_an_old_worker_that_does_not_finish(tmp_path: Path) -> None:
    hanging = subprocess.Popen(
        [sys.executable, "-c", HOLD_LOCK, str(tmp_path), "headrace.service.engine_process"],
        env=child_environment({}),
        stdout=subprocess.PIPE,
    )
    assert hanging.stdout and hanging.stdout.readline() == b"held\n"
    worker = Worker(options(tmp_path, old_worker_seconds=0.3))

    async def body() -> None:
        started = time.monotonic()
        await worker.ready()
        assert time.monotonic() - started >= 0.3

    try:
        use(worker, body())
        assert hanging.wait(PATIENCE) == -signal.SIGKILL
    finally:
        hanging.kill()
        hanging.stdout.close()


HOLD_LOCK = """
import sys, time, pathlib
from headrace.service.lockfile import LockFile
lock = LockFile(pathlib.Path(sys.argv[1]) / "worker.lock")
print("held", flush=True) or time.sleep(60)
"""


def test_second_sigterm_ends_the_process_at_once(tmp_path: Path) -> None:
    run = make_job(tmp_path, steps=1, step_seconds=30)
    worker = Worker(options(tmp_path))

    async def body() -> None:
        running = asyncio.create_task(worker.run(run))
        await until(lambda: read_events(run))
        pid = worker.status()["pid"]
        os.kill(pid, signal.SIGTERM)
        await asyncio.sleep(0.2)
        os.kill(pid, signal.SIGTERM)
        death = await running
        assert death and death.status == 128 + signal.SIGTERM

    use(worker, body())
