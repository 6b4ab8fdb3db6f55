"""Where a job has told nothing of rows or texts, the answer says why."""

from typing import Any

import numpy as np
import pytest

from fakes_daemon import FakeDaemon, calling, some_job
from headrace.engine import FEWEST_ROWS
from headrace.engine.outliers import find_outliers
from headrace.service.hyperparameters import settle
from headrace.service.none_told import why_no_rows, why_no_samples

DPO = {"type": "dpo"}


def job(status: str = "running", *, asked: dict[str, Any] | None = None, **changed: Any) -> Any:
    settled = settle(asked or {}, num_rows=100, max_positions=64)
    engine = {"step": 3, "total_steps": 9}
    values = {"status": status, "hyperparameters": settled, "engine": engine}
    return some_job(**values | changed)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (job(hyperparameters={"n_epochs": 3}), "from before Headrace kept the losses"),
        (job(asked={"row_losses": False}), "row_losses false"),
        (job(method=DPO), "of preferences (dpo)"),
        (job("queued", engine={}), "the job is queued, at step 0"),
        (job(), "at the end of each epoch, where 16 rows or more were seen; the job is running, "
                "at step 3 of 9"),
        (job("cancelled"), "the job cancelled at step 3 before one"),
        (job("succeeded"), "this job saw fewer"),
    ],
)  # fmt: skip
def test_rows_that_were_not_told_have_a_reason(found: Any, said: str) -> None:
    assert said in why_no_rows(found)


PROMPTS = {"sample_prompts": ["Q:"]}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (job(hyperparameters={"n_epochs": 3}), "from before Headrace wrote sample texts"),
        (job(), "asked for none; give sample_prompts, or sample_rows"),
        (job("queued", asked=PROMPTS, engine={}), "the first before step 1; the job is queued"),
        (job("failed", asked=PROMPTS, engine={}), "the job failed at step 0 before one"),
        (job("succeeded", asked={"sample_rows": 2}), "`headrace logs ftjob-"),
    ],
)
def test_texts_that_were_not_written_have_a_reason(found: Any, said: str) -> None:
    assert said in why_no_samples(found)


def test_so_few_rows_are_compared_with_none() -> None:
    for count in (FEWEST_ROWS - 1, FEWEST_ROWS):
        losses = np.linspace(1, 2, count, dtype=np.float32)
        found = find_outliers([(losses, np.arange(count))], count)
        assert (found is None) == (count < FEWEST_ROWS)


def test_the_answers_carry_the_reason(tmp_path: Any) -> None:
    daemon = FakeDaemon(tmp_path)
    with calling(daemon) as client:
        made = daemon.journal.add_job(job())
        path = f"/v1/fine_tuning/jobs/{made.id}"
        assert client.get(f"{path}/row_losses").json()["reason"] == why_no_rows(made)
        assert client.get(f"{path}/samples").json()["reason"] == why_no_samples(made)
        data: dict[str, Any] = {"samples": [], "temperature": 0.0}
        none: dict[str, Any] = {"count": 0, "rows": []}
        rows = {"num_rows": 9, "medians": [1.0], "above": none, "below": none, "not_finite": none}
        for kind, told in (("samples", data), ("row_losses", rows)):
            daemon.journal.add_event(
                made.id, type=kind, level="info", message="m", step=1, data=told
            )
        assert client.get(f"{path}/row_losses").json()["reason"] is None
        assert client.get(f"{path}/samples").json()["reason"] is None
