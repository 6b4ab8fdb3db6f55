"""Tokens from the command line: made once, listed by their first characters, revoked."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.service.__main__ import main
from headrace.service.auth import Tokens
from headrace.service.cli.output import Exit


def token(
    capsys: pytest.CaptureFixture[str], data_dir: Path, *arguments: str
) -> tuple[int, Any, str]:
    """Exit code, JSON answer and complaints of `headrace token`."""
    with pytest.raises(SystemExit) as ended:
        main(["token", *arguments, "--data-dir", str(data_dir), "--json"])
    said = capsys.readouterr()
    return int(ended.value.code or 0), json.loads(said.out or "null"), said.err


def test_a_token_is_made_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, made, _ = token(capsys, tmp_path, "create", "laptop")
    tokens = Tokens(tmp_path / "tokens.json")
    assert tokens.find(made["token"]) is not None
    _, listed, _ = token(capsys, tmp_path, "list")
    assert [entry["name"] for entry in listed] == ["laptop"]
    assert listed[0]["shown"] == made["token"][:11] and "sha256" not in listed[0]
    code, answer, said = token(capsys, tmp_path, "revoke", listed[0]["shown"])
    assert code == Exit.OK and "open to every program on this machine" in said
    assert answer == {"revoked": listed[0]["shown"], "name": "laptop", "left": 0}
    assert tokens.find(made["token"]) is None


def test_revoking_an_unknown_token_names_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Tokens(tmp_path / "tokens.json").create("laptop")
    code, _, error = token(capsys, tmp_path, "revoke", "hr_other")
    assert code == Exit.REFUSED and made[:11] in error


def test_a_token_is_revoked_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    laptop, desk = tokens.create("laptop"), tokens.create("desk")
    code, answer, _ = token(capsys, tmp_path, "revoke", "laptop")
    assert code == Exit.OK
    assert answer == {"revoked": laptop[:11], "name": "laptop", "left": 1}
    assert tokens.find(laptop) is None and tokens.find(desk)


def test_a_name_of_several_tokens_is_refused_with_their_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    made = [tokens.create("laptop") for _ in range(3)]
    code, _, error = token(capsys, tmp_path, "revoke", "laptop")
    assert code == Exit.REFUSED and "3 tokens" in error
    assert all(one[:11] in error and tokens.find(one) for one in made)
    assert token(capsys, tmp_path, "revoke", made[1][:11])[0] == Exit.OK
    assert [tokens.find(one) is not None for one in made] == [True, False, True]


def test_an_id_goes_before_a_name_that_reads_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = Tokens(tmp_path / "tokens.json")
    first = tokens.create("laptop")
    second = tokens.create(first[:11])
    assert token(capsys, tmp_path, "revoke", first[:11])[0] == Exit.OK
    assert tokens.find(second) and tokens.find(first) is None


def test_a_damaged_file_is_mended_without_opening_the_door(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tokens.json"
    tokens = Tokens(path)
    kept, lost = tokens.create("kept"), tokens.create("lost")
    damaged = path.read_bytes()[:-60]
    path.write_bytes(damaged)
    for command in (["list"], ["create", "x"], ["revoke", "kept"]):
        code, _, error = token(capsys, tmp_path, *command)
        assert code == Exit.REFUSED and str(path) in error and "headrace token mend" in error
    code, answer, _ = token(capsys, tmp_path, "mend", "new", "--scope", "read")
    assert (code, answer["kept"], answer["scope"]) == (Exit.OK, 1, "read")
    assert tokens.find(kept) and tokens.find(answer["token"]) and tokens.find(lost) is None
    beside = tmp_path / "tokens.json.damaged"
    assert beside.read_bytes() == damaged and beside.stat().st_mode & 0o777 == 0o600


def test_a_good_file_is_not_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Tokens(tmp_path / "tokens.json").create("laptop")
    code, _, error = token(capsys, tmp_path, "mend", "new")
    assert code == Exit.REFUSED and "not damaged" in error
    assert len(Tokens(tmp_path / "tokens.json").entries()) == 1
