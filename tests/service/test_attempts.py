from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling
from headrace.service import attempts
from headrace.service.attempts import AT_ONCE, SECONDS_EACH, FailedAttempts
from headrace.service.auth import Tokens


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_some_failures_are_taken_at_once_then_one_by_one(clock: Clock) -> None:
    failed = FailedAttempts(clock)
    assert [failed.count("a") for _ in range(AT_ONCE)] == [0] * AT_ONCE
    assert failed.count("a") == failed.count("a") == SECONDS_EACH
    clock.now += SECONDS_EACH
    assert failed.count("a") == 0 and failed.count("a") > 0
    clock.now += AT_ONCE * SECONDS_EACH
    assert [failed.count("a") for _ in range(AT_ONCE)] == [0] * AT_ONCE


def test_addresses_are_counted_apart(clock: Clock) -> None:
    failed = FailedAttempts(clock)
    for _ in range(AT_ONCE + 1):
        failed.count("a")
    assert failed.count("b") == 0


def test_no_number_of_addresses_fills_the_memory(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "MAX_ADDRESSES", 2)
    failed = FailedAttempts(clock)
    for address in ("a", "b", "c", "a", "d"):
        failed.count(address)
    assert list(failed._whole_at) == ["a", "d"]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[tuple[httpx2.Client, str]]:
    daemon = FakeDaemon(tmp_path)
    token = Tokens(daemon.settings.tokens_path).create("owner")
    with calling(daemon) as client:
        yield client, token


def test_guessing_is_slowed_down_and_the_owner_is_not(client: tuple[httpx2.Client, str]) -> None:
    http, token = client
    owner = {"authorization": f"Bearer {token}"}
    for _ in range(AT_ONCE):
        assert http.get("/v1/models", headers={"api-key": "guess"}).status_code == 401
        assert http.get("/v1/models", headers=owner).status_code == 200
    refused = http.get("/v1/models", headers={"api-key": "guess"})
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "too_many_failed_attempts"
    assert 0 < int(refused.headers["retry-after"]) <= SECONDS_EACH
    assert refused.headers["x-should-retry"] == "false", "or clients would try again by themselves"
    assert http.get("/v1/models", headers=owner).status_code == 200
    assert http.get("/livez").status_code == 200
