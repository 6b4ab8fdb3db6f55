"""A job that reaches its limit pauses with the reason, and goes on when it is given more."""

import time
from pathlib import Path
from typing import Any

from openai import OpenAI

from headrace.engine import write_demo_data
from running_daemon import running_daemon
from tiny import make_tiny_llama

LIMIT_SECONDS = 90


def _wait(api: OpenAI, job_id: str, statuses: tuple[str, ...]) -> Any:
    started = time.monotonic()
    while (job := api.fine_tuning.jobs.retrieve(job_id)).status not in statuses:
        assert time.monotonic() - started < LIMIT_SECONDS, job
        time.sleep(0.1)
    return job


def test_a_job_pauses_at_its_write_limit_and_a_resume_with_a_larger_one_ends_it(
    tmp_path: Path,
) -> None:
    make_tiny_llama(tmp_path / "models" / "tiny", tied=True, seed=3)
    rows = write_demo_data(tmp_path / "rows").train
    with running_daemon(tmp_path / "data", tmp_path / "models", []) as daemon:
        api = OpenAI(base_url=f"{daemon.url}/v1", api_key="-")
        file = api.files.create(file=rows, purpose="fine-tune")
        method: Any = {"type": "supervised", "supervised": {"hyperparameters": {"max_steps": 6}}}
        job = api.fine_tuning.jobs.create(
            model="tiny",
            training_file=file.id,
            method=method,
            extra_body={"limits": {"max_bytes_written": 5_000_000}},
        )
        paused = _wait(api, job.id, ("paused", "succeeded", "failed"))
        assert paused.status == "paused", paused.error
        events = api.fine_tuning.jobs.list_events(job.id, limit=100).data
        warnings = [event.message for event in events if event.level == "warn"]
        assert any("max_bytes_written" in message for message in warnings)
        api.fine_tuning.jobs.resume(job.id, extra_body={"limits": {"max_bytes_written": 10**12}})
        done = _wait(api, job.id, ("paused", "succeeded", "failed"))
        assert done.status == "succeeded", done.error
