"""What `resume_from` leads to: weights to start from, or a failed job's state to go on with."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_engine import undisturbed_weight
from headrace.service import origin
from headrace.service.creation import Creation
from headrace.service.daemon import Daemon
from headrace.service.errors import ApiError
from headrace.service.jobs import JobRecord
from headrace.service.schemas import parse_create
from real_daemon import (
    add_job,
    job,
    make_daemon,
    messages,
    until,
    until_status,
    use,
)


@pytest.fixture(autouse=True)
def _the_script_has_no_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted engine keeps its state beside the jobs: whoever has a step has a state."""
    monkeypatch.setattr(origin, "has_state", lambda volumes, name: name != "ftjob-none")


def body_of(old: str, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "training_file": "file-1", "resume_from": old, **more}


async def create(daemon: Daemon, body: dict[str, Any]) -> JobRecord:
    made = await Creation(daemon).create(parse_create(body), {})
    daemon.wake()
    return made


async def refused(daemon: Daemon, body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await create(daemon, body)
    return caught.value


async def failed_job(daemon: Daemon) -> str:
    return (await until_status(daemon, add_job(daemon), "failed")).id


FAILING = {"do": {"3": "fail"}}


def test_a_job_goes_on_with_the_state_of_a_failed_one_to_the_same_weights(tmp_path: Path) -> None:
    async def check(daemon: Daemon) -> None:
        old = await failed_job(daemon)
        free = {"suffix": "again", "limits": {"max_hours": 5}, "strategy": "memascend"}
        made = await create(daemon, body_of(old, **free))
        assert (made.seed, made.hyperparameters) == (
            job(daemon, old).seed,
            job(daemon, old).hyperparameters,
        )
        assert made.engine["settings"]["strategy"] == "memascend"
        (daemon.settings.data_dir / "script.json").write_text("{}")
        done = await until_status(daemon, made.id, "succeeded", "failed")
        assert done.status == "succeeded", done.error
        spec = json.loads((daemon.settings.jobs_dir / made.id / "spec.json").read_text())
        assert spec["strategy"] == "memascend"
        committed = (daemon.settings.jobs_dir / old / "committed.json").read_text()
        assert f'"weight": {undisturbed_weight(4)}' in committed
        assert "step 3" in messages(daemon, made.id) and "step 2" not in messages(daemon, made.id)
        assert done.fine_tuned_model and ":again:" in done.fine_tuned_model
        again = await refused(daemon, body_of(old))
        assert again.code == "not_resumable" and made.id in again.message

    use(make_daemon(tmp_path, script=FAILING), check)


def test_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    async def check(daemon: Daemon) -> None:
        old = await failed_job(daemon)
        rate = {"hyperparameters": {"learning_rate": 0.5}}
        method = {"type": "supervised", "supervised": rate}
        error = await refused(daemon, body_of(old, method=method, seed=9))
        assert error.code == "settings_differ" and error.param == "resume_from"
        assert "learning_rate is 1e-05 there, 0.5 here" in error.message
        assert "seed is 1 there, 9 here" in error.message
        error = await refused(daemon, body_of(old, method={"type": "dpo"}))
        assert "method is 'supervised' there, 'dpo' here" in error.message

    use(make_daemon(tmp_path, script=FAILING), check)


def test_a_job_that_is_not_over_is_not_gone_on_with(tmp_path: Path) -> None:
    async def check(daemon: Daemon) -> None:
        held = add_job(daemon, status="paused")
        error = await refused(daemon, body_of(held))
        assert "is paused" in error.message and error.hint == "Resume it."
        assert "no job and no checkpoint" in (await refused(daemon, body_of("nothing"))).message

    use(make_daemon(tmp_path), check)


def test_weights_of_a_checkpoint_or_a_finished_job_are_started_from(tmp_path: Path) -> None:
    async def check(daemon: Daemon) -> None:
        done = await until_status(daemon, add_job(daemon), "succeeded")
        (point,) = daemon.journal.checkpoints(done.id)
        where = daemon.settings, daemon.journal
        for name, model in (
            (done.id, done.fine_tuned_model),
            (point.id, point.name),
            (point.name, point.name),
        ):
            found = origin.follow(parse_create(body_of(name)).body(), *where)
            assert isinstance(found, dict) and found["model"] == model
        with pytest.raises(ApiError, match="was trained from 'tiny'"):
            origin.follow(parse_create(body_of(point.id, model="other")).body(), *where)

    use(make_daemon(tmp_path, script={"checkpoint": 2}), check)


def test_state_that_went_to_another_job_is_not_freed_with_the_first(tmp_path: Path) -> None:
    async def check(daemon: Daemon) -> None:
        old = await failed_job(daemon)
        made = await create(daemon, body_of(old))
        await until(lambda: job(daemon, made.id).status != "queued")
        assert not await asyncio.to_thread(daemon.free_job, job(daemon, old))
        first, second = daemon.journal.jobs_of_state(made.state_name)
        assert (first.id, second.id) == (made.id, old)
        assert replace(made, engine={}).state_name == made.id

    use(make_daemon(tmp_path, script=FAILING), check)
