"""Ranges of a file, as RFC 9110 has them, and refusals in the API's own envelope."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fakes_daemon import FakeDaemon, calling
from headrace.service.downloads import satisfiable
from headrace.service.errors import ApiError

CONTENT = bytes(range(100))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> FakeDaemon:
    return FakeDaemon(tmp_path_factory.mktemp("downloads"))


@pytest.fixture(scope="module")
def client(daemon: FakeDaemon) -> Iterator[httpx2.Client]:
    with calling(daemon) as client:
        yield client


@pytest.fixture(scope="module")
def path(client: httpx2.Client) -> str:
    """Where the bytes of an uploaded file are."""
    form: dict[str, Any] = {"purpose": (None, "fine-tune"), "file": ("a", CONTENT)}
    return f"/v1/files/{client.post('/v1/files', files=form).json()['id']}/content"


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ("bytes=0-3", "bytes=0-3"),
        ("Bytes = 5-, -7,, 0-0 ", "bytes=5-,-7,0-0"),
        ("bytes=99-99999999999999999999999999999999", "bytes=99-99"),
        ("bytes=0-" + "9" * 5000, "bytes=0-99"),
        ("bytes=0-" + "0" * 5000 + "3", "bytes=0-3"),
        ("bytes=-" + "9" * 5000, "bytes=-100"),
        ("bytes=100-, 0000-0001", "bytes=0-1"),
        ("bytes=-0,-100000", "bytes=-100"),
        ("rows=1-2", ""),
        ("", ""),
    ],
)
def test_a_range_is_read_as_the_standard_has_it(asked: str, kept: str) -> None:
    assert satisfiable(asked, 100) == kept


@pytest.mark.parametrize(
    "asked", ["bytes", "bytes=", "bytes=-", "bytes=,", "bytes=5-2", "bytes=a-b", "bytes=0-1,x",
              "bytes=--5", "bytes=+1-2", "bytes=1_0-20", "bytes=\u0661-", "bytes=0x1-"],
)  # fmt: skip
def test_a_malformed_range_is_refused_by_name(asked: str) -> None:
    with pytest.raises(ApiError, match="wanted bytes=FIRST-LAST") as caught:
        satisfiable(asked, 100)
    assert (caught.value.status, caught.value.param) == (400, "Range")


@pytest.mark.parametrize(("asked", "size"), [("100-", 100), ("-0", 100), ("0-", 0), ("-5", 0),
                                             ("9" * 5000 + "-", 100)])  # fmt: skip
def test_what_the_file_has_nothing_of_is_a_416_with_its_length(asked: str, size: int) -> None:
    with pytest.raises(ApiError) as caught:
        satisfiable(f"bytes={asked}", size)
    assert caught.value.status == 416
    assert caught.value.headers == {"content-range": f"bytes */{size}"}


def test_refused_ranges_come_in_the_envelope(client: httpx2.Client, path: str) -> None:
    for where in (path, "/static/icon.svg"):
        answer = client.get(where, headers={"range": "bytes=x"})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "Range"), where
        answer = client.get(where, headers={"range": "bytes=1000000-"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (416, "range_not_satisfiable"), where
        assert answer.headers["content-range"].startswith("bytes */")


def test_ranges_come_alone_or_together(client: httpx2.Client, path: str) -> None:
    answer = client.get(path, headers={"range": "bytes=90-,500-600"})
    assert (answer.status_code, answer.content) == (206, CONTENT[90:])
    assert answer.headers["content-range"] == "bytes 90-99/100"
    answer = client.get(path, headers={"range": "bytes=0-1,50-51"})
    assert answer.status_code == 206 and b"Content-Range: bytes 50-51/100" in answer.content


def test_what_is_to_be_ignored_brings_the_whole_file(client: httpx2.Client, path: str) -> None:
    whole = client.get(path)
    for headers in (
        {"range": "rows=1-2"},
        {"range": "bytes=500-", "if-range": '"another"'},
    ):
        answer = client.get(path, headers=headers)
        assert (answer.status_code, answer.content) == (200, CONTENT)
    same = {"range": "bytes=0-0", "if-range": whole.headers["etag"]}
    assert client.get(path, headers=same).content == CONTENT[:1]


def test_a_file_that_goes_while_it_is_asked_for_is_a_404(
    client: httpx2.Client, daemon: FakeDaemon, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    file = daemon.journal.file(path.split("/")[3])
    assert file
    moved = Path(file.path).rename(daemon.settings.data_dir / "away")
    try:
        assert client.get(path).status_code == 404
    finally:
        moved.rename(file.path)
