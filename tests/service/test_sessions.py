import errno
import json
from pathlib import Path

import pytest

from headrace.service.auth import Tokens
from headrace.service.errors import ApiError
from headrace.service.sessions import (
    COOKIE,
    LIFE_SECONDS,
    MAX_SESSIONS,
    PAGE_HEADER,
    Sessions,
    check_origin,
    let_in,
    read_cookie,
)

HOST = "box.example:8400"
OURS = {"host": HOST, "origin": f"http://{HOST}"}


class Clock:
    """A time that a test moves."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.json")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(tmp_path: Path, tokens: Tokens, clock: Clock) -> Sessions:
    return Sessions(tmp_path / "sessions.json", tokens, clock)


def opened(sessions: Sessions, token: str) -> str:
    secret = sessions.open(token)
    assert secret
    return secret


def test_a_session_stands_for_its_token(sessions: Sessions, tokens: Tokens) -> None:
    secret = opened(sessions, tokens.create("laptop"))
    entry = sessions.find(secret)
    assert entry and entry["name"] == "laptop"
    assert sessions.find(secret + "x") is None
    assert sessions.open("hr_wrong") is None


def test_neither_token_nor_secret_is_on_the_drive(
    sessions: Sessions, tokens: Tokens, tmp_path: Path
) -> None:
    token = tokens.create("a")
    secret = opened(sessions, token)
    path = tmp_path / "sessions.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert token not in path.read_text() and secret not in path.read_text()


def test_a_session_outlives_a_restart(sessions: Sessions, tokens: Tokens, tmp_path: Path) -> None:
    secret = opened(sessions, tokens.create("a"))
    again = Sessions(tmp_path / "sessions.json", tokens, Clock())
    assert again.find(secret)


def test_a_session_ends_with_its_time(sessions: Sessions, tokens: Tokens, clock: Clock) -> None:
    secret = opened(sessions, tokens.create("a"))
    clock.now += LIFE_SECONDS - 1
    assert sessions.find(secret)
    clock.now += 2
    assert sessions.find(secret) is None


def test_a_session_ends_with_its_token(sessions: Sessions, tokens: Tokens) -> None:
    kept, gone = tokens.create("kept"), tokens.create("gone")
    first, second = opened(sessions, kept), opened(sessions, gone)
    tokens.revoke(gone[:11])
    assert sessions.find(first) and sessions.find(second) is None


def test_a_closed_session_is_closed_after_a_restart_too(
    sessions: Sessions, tokens: Tokens, tmp_path: Path
) -> None:
    secret = opened(sessions, tokens.create("a"))
    sessions.close(secret)
    assert sessions.find(secret) is None
    assert Sessions(tmp_path / "sessions.json", tokens, Clock()).find(secret) is None


def test_sessions_are_bounded_and_the_oldest_makes_room(
    sessions: Sessions, tokens: Tokens, clock: Clock, tmp_path: Path
) -> None:
    token = tokens.create("a")
    secrets = []
    for _ in range(MAX_SESSIONS + 3):
        clock.now += 1
        secrets.append(opened(sessions, token))
    assert len(json.loads((tmp_path / "sessions.json").read_text())) == MAX_SESSIONS
    assert [bool(sessions.find(secret)) for secret in (*secrets[:4], secrets[-1])] == [
        False, False, False, True, True,
    ]  # fmt: skip


def test_an_unreadable_file_opens_nothing(tokens: Tokens, tmp_path: Path) -> None:
    (tmp_path / "sessions.json").write_text("{[")
    sessions = Sessions(tmp_path / "sessions.json", tokens, Clock())
    assert sessions.find("x") is None
    assert sessions.find(opened(sessions, tokens.create("a")))


def test_looking_needs_the_cookie_alone(sessions: Sessions, tokens: Tokens) -> None:
    cookie = {"cookie": f"{COOKIE}={opened(sessions, tokens.create('a'))}"}
    assert let_in(sessions, "GET", {"host": HOST} | cookie)
    assert let_in(sessions, "GET", {"host": HOST}) is None
    assert let_in(sessions, "POST", OURS) is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": f"http://{HOST}"},
        {PAGE_HEADER: "1"},
        {PAGE_HEADER: "1", "origin": "http://evil.example"},
        {PAGE_HEADER: "1", "origin": "http://box.example:9999"},
        {PAGE_HEADER: "1", "origin": "null"},
        {PAGE_HEADER: "1", "origin": "http://[::1"},
        {PAGE_HEADER: "1", "origin": f"http://{HOST}", "sec-fetch-site": "cross-site"},
        {PAGE_HEADER: "1", "origin": f"http://{HOST}", "sec-fetch-site": "same-site"},
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH", "OPTIONS"])
def test_a_change_with_the_cookie_must_come_from_our_page(
    sessions: Sessions, tokens: Tokens, headers: dict[str, str], method: str
) -> None:
    cookie = {"cookie": f"{COOKIE}={opened(sessions, tokens.create('a'))}"}
    with pytest.raises(ApiError) as caught:
        let_in(sessions, method, {"host": HOST} | cookie | headers)
    assert (caught.value.status, caught.value.code) == (403, "cross_origin")
    good = OURS | {PAGE_HEADER: "1", "sec-fetch-site": "same-origin"}
    assert let_in(sessions, method, good | cookie)


def test_an_origin_behind_a_proxy_is_judged_by_the_host_it_names() -> None:
    check_origin({"host": "tune.example", "origin": "https://tune.example"})
    with pytest.raises(ApiError):
        check_origin({"host": "tune.example", "origin": "https://tune.example.evil"})


@pytest.mark.parametrize("cookie", ["", "a=b", f"{COOKIE}=", ";;=;", "\x00=1"])
def test_a_cookie_that_is_none_of_ours_is_nothing(cookie: str) -> None:
    assert read_cookie({"cookie": cookie}) == ""


def test_a_full_drive_keeps_nobody_out_and_nobody_in(
    sessions: Sessions, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tokens.create("a")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("headrace.service.sessions.write_private", full)
    secret = opened(sessions, token)
    assert sessions.find(secret)
    with pytest.raises(OSError, match="No space"):
        sessions.close(secret)
    assert sessions.find(secret) is None
