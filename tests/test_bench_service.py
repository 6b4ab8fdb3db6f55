"""The service's benchmarks, small: a journal with many jobs, and a stream with many viewers."""

import asyncio
from pathlib import Path

import httpx2
import psutil

from bench.big_journal import fill, measure, questions
from bench.viewers import look_on, script_of, start_job
from fakes_daemon import FakeDaemon, serving
from scripted_service import scripted_service, write_house

LIMIT_MS = 200


def test_lists_answer_fast_from_a_journal_of_many_jobs(tmp_path: Path) -> None:
    daemon = FakeDaemon(tmp_path)
    ids = fill(daemon.settings.database_path, 150, 100)
    with serving(daemon) as url:
        found = measure(url, questions(ids, 100), 5)
    slow = {name: one for name, one in found.items() if one["median"] > LIMIT_MS}
    assert not slow


def test_viewers_see_every_step_and_hold_nothing_up(tmp_path: Path) -> None:
    write_house(tmp_path, script_of(100_000))
    with scripted_service(tmp_path) as served:
        url, api = served.url, psutil.Process(served.process.pid)
        with httpx2.Client(base_url=url, timeout=60) as client:
            job_id = start_job(client)
        before = api.memory_info().rss
        turn = asyncio.run(look_on(url, api, job_id, viewers=40, seconds=3))
        assert api.memory_info().rss - before < 60 << 20
    assert turn["least_seen"] > 0 and turn["p50_ms"] < LIMIT_MS
    assert turn["steps_per_second"] > 1
