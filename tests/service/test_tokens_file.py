"""A damaged tokens file lets nobody in, and says so wherever one looks."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes_daemon import FakeDaemon, serving
from headrace.service.auth import Tokens, check
from headrace.service.sessions import Sessions
from headrace.service.tokens_file import TokensDamaged

GOOD = {"name": "a", "shown": "hr_a", "sha256": "0" * 64, "scope": "read", "created_at": 1}
BAD_VALUES: list[tuple[str, Any]] = [
    ("name", 7), ("shown", None), ("sha256", "0" * 63), ("sha256", "\u00e9" * 64),
    ("scope", "root"), ("scope", []), ("created_at", "1"), ("created_at", 1e300),
]  # fmt: skip
DAMAGES = {
    "cut": b'[{"name": "a", "sh',
    "empty": b"",
    "zeros": b"\0" * 300,
    "not UTF-8": b'[{"name": "\xff"}]',
    "deep": b"[" * 100_000,
    "an object": b"{}",
    "null": b"null",
    "of numbers": b"[1]",
    **{
        f"{name}: {value!r}": json.dumps([GOOD, {**GOOD, name: value}]).encode()
        for name, value in BAD_VALUES
    },
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_opens_nothing(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(DAMAGES[damage])
    tokens = Tokens(path)
    for _ in range(2):
        with pytest.raises(TokensDamaged) as caught:
            check(tokens, {"host": "localhost"}, "127.0.0.1")
        assert caught.value.status == 503 and str(path) in caught.value.message
        assert "headrace token mend" in (caught.value.hint or "")
    with pytest.raises(TokensDamaged):
        tokens.create("a")
    assert path.read_bytes() == DAMAGES[damage]


def test_a_file_that_cannot_be_opened_opens_nothing(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").mkdir()
    with pytest.raises(TokensDamaged, match="cannot be read"):
        Tokens(tmp_path / "tokens.json").entries()


def test_a_daemon_with_a_damaged_file_says_so_and_stays_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens.json"
    token = Tokens(path).create("a")
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    bearer = {"authorization": f"Bearer {token}"}
    with (
        caplog.at_level(logging.ERROR),
        serving(FakeDaemon(tmp_path)) as url,
        httpx2.Client(base_url=url, timeout=60) as client,
    ):
        assert client.get("/livez").status_code == 200
        ready = client.get("/readyz")
        assert ready.status_code == 503 and str(path) in ready.json()["error"]["reasons"][0]
        for route in ("/", "/login", "/status", "/v1/files", "/static/style.css"):
            answer = client.get(route, headers=bearer)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (503, "tokens_damaged"), route
            assert str(path) in error["message"] and "token mend" in error["hint"]
        form = {"token": token, "next": "/"}
        assert client.post("/login", data=form, headers={"origin": url}).status_code == 503
        path.write_bytes(whole)
        assert client.get("/v1/files", headers=bearer).status_code == 200
        assert client.get("/v1/files").status_code == 401
    assert str(path) in caplog.text


def test_writers_do_not_undo_each_other(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    gone = Tokens(path).create("gone")
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(Tokens(path).create, f"n{i}") for i in range(24)]
        revoked = pool.submit(Tokens(path).revoke, gone[:11])
    assert revoked.result()
    tokens = Tokens(path)
    assert all(tokens.find(one.result()) for one in made) and tokens.find(gone) is None


@pytest.mark.parametrize("text", ["[1]", "7", '{"a": 1}', '{"a": {"token": 1}}', "[" * 100_000])
def test_files_beside_it_that_are_damaged_are_forgotten(tmp_path: Path, text: str) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    token = tokens.create("a")
    for name in ("tokens-used.json", "sessions.json"):
        (tmp_path / name).write_text(text)
    assert all(isinstance(at, int) for at in tokens.last_used().values())
    entry = tokens.find(token)
    assert entry
    tokens.note_use(entry)
    tokens.keep_uses()
    assert entry["sha256"] in tokens.last_used()
    sessions = Sessions(tmp_path / "sessions.json", tokens)
    assert sessions.find("x") is None
    assert sessions.find(sessions.open(token) or "")
