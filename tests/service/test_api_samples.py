"""What the model wrote at evaluations: the route, and the card on the job's page."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling, some_job

Served = tuple[FakeDaemon, httpx2.Client]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    daemon = FakeDaemon(tmp_path_factory.mktemp("samples"))
    with calling(daemon) as client:
        yield daemon, client


def text(source: str, completion: str, **changed: Any) -> dict[str, Any]:
    return {
        "source": source, "row": None, "prompt": "Q: why? A:", "prompt_tokens_cut": 0,
        "completion": completion, "num_tokens": 3, "ended": "stop", "expected": None,
    } | changed  # fmt: skip


def add_samples(daemon: FakeDaemon, job_id: str, step: int, *texts: dict[str, Any]) -> None:
    data = {"samples": list(texts), "temperature": 0.5}
    daemon.journal.add_event(
        job_id, type="samples", level="info", message="s", step=step, data=data
    )


def test_sample_texts_come_by_evaluation_newest_first_in_pages(served: Served) -> None:
    daemon, client = served
    job = daemon.journal.add_job(some_job())
    for step in (0, 10, 20):
        add_samples(daemon, job.id, step, text("prompt 1", f"because {step}"))
    add_samples(daemon, job.id, 20, text("prompt 1", "said again"))  # done again after a crash
    path = f"/v1/fine_tuning/jobs/{job.id}/samples"
    first = client.get(path, params={"limit": 2}).json()
    assert [one["step_number"] for one in first["data"]] == [20, 10] and first["has_more"]
    assert first["data"][0]["samples"][0]["completion"] == "said again"
    assert first["data"][0]["temperature"] == 0.5
    rest = client.get(path, params={"after": first["last_id"]}).json()
    assert [one["step_number"] for one in rest["data"]] == [0] and not rest["has_more"]
    assert client.get(path, params={"after": "nothing"}).status_code == 400
    assert client.get("/v1/fine_tuning/jobs/ftjob-none/samples").status_code == 404


def row(number: int, *losses: float | None) -> dict[str, Any]:
    return {"row": number, "file": "<t>.jsonl", "line": 2 * number + 1, "item": None,
            "losses": list(losses)}  # fmt: skip


def test_rows_that_stand_out_are_those_told_last_and_on_the_page(served: Served) -> None:
    daemon, client = served
    job = daemon.journal.add_job(some_job())
    path = f"/v1/fine_tuning/jobs/{job.id}/row_losses"
    assert client.get(path).json()["step_number"] is None
    assert "stand out" not in client.get(f"/jobs/{job.id}").text
    none: dict[str, Any] = {"count": 0, "rows": []}
    for step in (10, 20):
        found = {
            "num_rows": 100, "medians": [2.0], "below": none, "not_finite": none,
            "above": {"count": step, "rows": [row(step, 9.0, None)]},
        }  # fmt: skip
        daemon.journal.add_event(
            job.id, type="row_losses", level="info", message="m", step=step, data=found
        )
    told = client.get(path).json()
    assert (told["step_number"], told["above"]["count"]) == (20, 20)
    assert told["above"]["rows"][0]["line"] == 41
    shown = client.get(f"/jobs/{job.id}").text
    assert "20 far above the others" in shown and "line 41" in shown and "<t>" not in shown
    assert client.get("/v1/fine_tuning/jobs/ftjob-none/row_losses").status_code == 404


def test_the_page_shows_texts_by_prompt_and_hides_an_empty_card(served: Served) -> None:
    daemon, client = served
    job = daemon.journal.add_job(some_job())
    card = 'data-part="samples"'
    assert f"{card} hidden" in client.get(f"/jobs/{job.id}").text
    wicked = "<b>bold</b>"
    add_samples(daemon, job.id, 0, text("validation row 1", "oh", expected="so"))
    add_samples(daemon, job.id, 8, text("validation row 1", wicked, expected="so", ended="length"))
    shown = client.get(f"/jobs/{job.id}").text
    assert f"{card} hidden" not in shown and card in shown
    assert "<mark>&lt;b&gt;bold&lt;/b&gt;</mark>…" in shown and wicked not in shown
    assert "written by the weights of step 8" in shown and ">so</dd>" in shown
    assert "<dt>Step 0</dt>" in shown and ">oh</dd>" in shown
