"""A bug is a 500 that tells nothing of itself, wherever it strikes; only bad input is a 400."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling, some_job
from headrace.engine import TrainConfig
from headrace.service import creation, estimate, job_parts
from headrace.service.errors import ApiError
from headrace.service.routes import events as event_routes
from headrace.service.routes import jobs as job_routes
from headrace.service.schemas import parse_create
from headrace.service.site import Site

JOBS = "/v1/fine_tuning/jobs"
BODY: dict[str, Any] = {"model": "tiny", "training_file": "file-1"}
SECRET = "a secret of /srv/inner"
BUGS = [ValueError(SECRET), KeyError(SECRET), TypeError(SECRET), AssertionError(SECRET),
        OSError(5, SECRET), RuntimeError(SECRET)]  # fmt: skip


def break_with(bug: Exception) -> Callable[..., NoReturn]:
    """A function that has that bug, whatever it is called with."""

    def broken(*_: Any, **__: Any) -> NoReturn:
        raise bug

    return broken


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeDaemon, httpx2.Client]]:
    daemon = FakeDaemon(tmp_path_factory.mktemp("faults"))
    with calling(daemon) as client:
        daemon.journal.add_job(some_job(id="ftjob-1"))
        yield daemon, client


def check_is_internal(answer: httpx2.Response, log: pytest.LogCaptureFixture) -> None:
    """A 500 by its id alone, with the traceback in the log under the same id."""
    request_id = answer.headers["x-request-id"]
    assert answer.status_code == 500, answer.text
    found = answer.json()["error"]
    assert (found["type"], found["code"], found["param"]) == ("server_error", "internal", None)
    assert request_id in found["message"] and SECRET not in answer.text
    (told,) = [record for record in log.records if record.exc_info]
    assert getattr(told, "request_id", None) == request_id
    assert told.exc_info and SECRET in str(told.exc_info[1])


PLACES = [
    ("POST", JOBS, BODY, creation, "require_rows"),
    ("POST", "/v1/fine_tuning/plans", BODY, creation, "require_rows"),
    ("POST", JOBS, BODY | {"dataset": {"columns": {"prompt": "a"}}}, job_parts, "check_columns"),
    ("GET", JOBS, None, job_routes, "job_object"),
    ("GET", JOBS, None, job_routes, "look"),
    ("GET", f"{JOBS}/ftjob-1/events", None, event_routes, "event_object"),
    ("GET", f"{JOBS}/ftjob-1", None, job_routes, "require_job"),
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: type(bug).__name__)
@pytest.mark.parametrize(("method", "path", "body", "module", "name"), PLACES)
def test_a_bug_is_a_500_that_tells_nothing_of_itself(
    served: tuple[FakeDaemon, httpx2.Client],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    module: Any,
    name: str,
    bug: Exception,
) -> None:
    monkeypatch.setattr(module, name, break_with(bug))
    with caplog.at_level(logging.ERROR):
        check_is_internal(served[1].request(method, path, json=body), caplog)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: type(bug).__name__)
def test_a_bug_in_the_journal_is_no_unknown_id(
    served: tuple[FakeDaemon, httpx2.Client],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bug: Exception,
) -> None:
    daemon, client = served
    for name in ("jobs", "events", "checkpoints", "files"):
        monkeypatch.setattr(daemon.journal, name, break_with(bug))
    for path in (JOBS, f"{JOBS}/ftjob-1/events", f"{JOBS}/ftjob-1/checkpoints", "/v1/files"):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            check_is_internal(client.get(path, params={"after": "x"}), caplog)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: type(bug).__name__)
@pytest.mark.parametrize("name", ["make_plan", "fit_microbatch", "method_spec", "plan_report"])
def test_a_bug_of_the_planner_is_not_blamed_on_the_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, bug: Exception
) -> None:
    from headrace.engine import shape_spec

    monkeypatch.setattr(estimate, name, break_with(bug))
    values = TrainConfig(model="", dataset="").to_dict()
    site = Site(device="cpu", volumes=(str(tmp_path),), device_bytes=None, host_bytes=None)
    with pytest.raises(type(bug)):
        estimate.estimate_plan(
            shape_spec("tiny"), values, site, longest_row_tokens=8, mean_row_tokens=4, num_steps=3
        )


def test_a_bug_of_a_validator_is_raised_and_bad_input_is_a_400(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = BODY | {"dataset": {"columns": {"prompt": "a", "completion": "a"}}}
    with pytest.raises(ApiError, match="names one column for two keys"):
        parse_create(columns)
    monkeypatch.setattr(job_parts, "check_columns", break_with(ValueError(SECRET)))
    with pytest.raises(ValueError, match=SECRET):
        parse_create(columns)
