import json
from pathlib import Path

import pytest

from headrace.service.auth import Tokens, check, first_token, is_loopback
from headrace.service.errors import ApiError

LOCAL = {"host": "127.0.0.1:8400"}


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.json")


def refused(tokens: Tokens, headers: dict[str, str]) -> tuple[int, str | None]:
    """Status and code of a refusal."""
    with pytest.raises(ApiError) as caught:
        check(tokens, headers)
    return caught.value.status, caught.value.code


def test_a_token_is_kept_as_a_hash_in_a_private_file(tokens: Tokens, tmp_path: Path) -> None:
    token = tokens.create("laptop")
    path = tmp_path / "tokens.json"
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry["name"] for entry in json.loads(path.read_text())] == ["laptop"]
    assert len(token) > 40


def test_without_a_token_the_api_is_open_to_this_machine(tokens: Tokens) -> None:
    for host in ("127.0.0.1:8400", "localhost", "[::1]:8400"):
        check(tokens, {"host": host})


@pytest.mark.parametrize(
    "host", ["evil.example", "192.168.1.5:8400", "", "localhost.evil.example", "[::1"]
)
def test_without_a_token_other_names_are_refused(tokens: Tokens, host: str) -> None:
    assert refused(tokens, {"host": host}) == (403, "not_local")


def test_without_a_token_a_caller_from_afar_is_refused_whatever_host_it_names(
    tokens: Tokens,
) -> None:
    for address in ("127.0.0.1", "::1", "127.9.9.9", "::ffff:127.0.0.1", "", "testclient"):
        check(tokens, LOCAL, address)
    for address in ("192.168.1.5", "fe80::1", "::ffff:10.0.0.1"):
        with pytest.raises(ApiError, match="this machine only") as caught:
            check(tokens, LOCAL, address)
        assert (caught.value.status, caught.value.code) == (403, "not_local")


def test_without_a_token_pages_of_other_sites_are_refused(tokens: Tokens) -> None:
    check(tokens, LOCAL | {"origin": "http://127.0.0.1:8400"})
    for origin in ("https://evil.example", "null", "http://127.0.0.1:9999", "http://[::1"):
        assert refused(tokens, LOCAL | {"origin": origin}) == (403, "cross_origin")


def test_once_a_token_exists_it_is_wanted(tokens: Tokens) -> None:
    token = tokens.create("a")
    assert refused(tokens, LOCAL) == (401, "missing_token")
    assert refused(tokens, LOCAL | {"authorization": "Bearer hr_wrong"}) == (
        401,
        "invalid_api_key",
    )
    check(tokens, {"host": "example.org", "authorization": f"Bearer {token}"})
    check(tokens, {"host": "example.org", "api-key": token})


def test_a_revoked_token_is_refused(tokens: Tokens) -> None:
    kept, gone = tokens.create("kept"), tokens.create("gone")
    assert tokens.revoke(gone[:11]) and not tokens.revoke(gone[:11])
    assert [tokens.find(token) is not None for token in (kept, gone)] == [True, False]


def test_a_token_made_by_another_process_is_seen(tokens: Tokens, tmp_path: Path) -> None:
    assert not tokens.entries()
    token = Tokens(tmp_path / "tokens.json").create("other")
    assert tokens.find(token) is not None


def test_listening_to_other_machines_makes_the_first_token(tokens: Tokens, tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert not first_token(tokens, "127.0.0.1", path)
    assert first_token(tokens, "0.0.0.0", path)
    assert tokens.find(path.read_text().strip()) is not None
    assert path.stat().st_mode & 0o777 == 0o600
    assert not first_token(tokens, "0.0.0.0", path), "a second start made a second one"


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.org", False)],
)  # fmt: skip
def test_loopback_is_known_by_address_or_name(host: str, local: bool) -> None:
    assert is_loopback(host) == local
