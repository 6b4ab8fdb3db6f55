import http.client
import json
from collections.abc import Iterator
from urllib.parse import unquote

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes_daemon import FakeDaemon, serving
from headrace.service.errors import ApiError
from headrace.service.filenames import MAX_CHARACTERS, attachment, parameters, safe_name
from headrace.service.form import MAX_FIELDS, Form

TYPE = "multipart/form-data; boundary=xx"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b'filename="a.jsonl"', "a.jsonl"),
        (b"filename=a.jsonl", "a.jsonl"),
        (b'filename=""', ""),
        (rb'filename="a\"b.jsonl"', 'a"b.jsonl'),
        (rb'filename="a\\b\".jsonl"', 'a\\b".jsonl'),
        (rb'filename="C:\rows\a.jsonl"', r"C:\rows\a.jsonl"),
        (b'filename="a;b=c.jsonl"', "a;b=c.jsonl"),
        (b'filename="a\0b"', "a\0b"),
        ('filename="größe-行.jsonl"'.encode(), "größe-行.jsonl"),
        ('filename="größe.jsonl"'.encode("latin-1"), "größe.jsonl"),
        (b"filename*=UTF-8''%E8%A1%8C.jsonl", "行.jsonl"),
        (b"filename*=utf-8'de'gr%C3%B6%C3%9Fe.jsonl", "größe.jsonl"),
        (b"filename*=iso-8859-1''gr%F6%DFe.jsonl", "größe.jsonl"),
        (b"filename=\"plain\"; filename*=UTF-8''%E8%A1%8C", "行"),
        (b"filename*=UTF-8''%E8%A1%8C; filename=\"plain\"", "行"),
        (b"filename=\"plain\"; filename*=UTF-8''%ff%fe", "plain"),
        (b"filename=\"plain\"; filename*=koi8-r''%C1", "plain"),
        (b'filename="plain"; filename*=nothing', "plain"),
        (b'filename="first"; filename="second"', "first"),
        (b'FileName = "a" ; x=y', "a"),
    ],
)
def test_a_header_is_read_as_it_was_meant(sent: bytes, kept: str) -> None:
    found = parameters(b'form-data; name="file"; ' + sent)
    assert (found["name"], found["filename"]) == ("file", kept)


@pytest.mark.parametrize("end", [b"", b'"', b'"; x="', b"\\"])
@pytest.mark.parametrize("piece", [b"\\", b'\\"', b'; a="', b"; ", b' = "', b"\\\\x"])
def test_no_header_takes_long_to_read(piece: bytes, end: bytes) -> None:
    """A part's header has 4 KiB at most; quotes that never end once took for ever."""
    found = parameters(b'form-data; name="file"; filename="' + piece * (4000 // len(piece)) + end)
    assert found["name"] == "file"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        (r"C:\rows\a.jsonl", "a.jsonl"),
        ("a/b/", "file"),
        ("..", "file"),
        (".", "file"),
        ("", "file"),
        ("  ", "file"),
        ("\0\r\n", "file"),
        ("a\r\nSet-Cookie: b=c", "aSet-Cookie: b=c"),
        ("a%0D%0ASet-Cookie: b=c", "aSet-Cookie: b=c"),
        ("a%22b%2522.jsonl", 'a"b%2522.jsonl'),
        ("a\0.jsonl", "a.jsonl"),
        ("a\u2028b\x7f\x85c", "abc"),
        (".hidden", ".hidden"),
        ("行 größe.jsonl", "行 größe.jsonl"),
    ],
)
def test_what_is_kept_of_a_name_is_its_last_part_in_plain_characters(name: str, kept: str) -> None:
    assert safe_name(name) == kept


NAMES = st.text(max_size=80) | st.text(alphabet='ab/\\"\r\n\0%20D;=* é行', max_size=40)


@given(NAMES)
def test_no_name_leaves_its_header_and_all_of_them_come_back(name: str) -> None:
    kept = safe_name(name)
    assert kept and not set(kept) & set("/\\\r\n\0")
    header = attachment(name)
    assert header.isascii() and header.isprintable()
    found = parameters(header.encode())
    assert found.keys() == {"filename"} and found["filename"] == kept
    plain = header.partition('filename="')[2].partition('"')[0]
    assert header.count('"') == 2 and "\\" not in plain
    if "filename*" in header:
        assert unquote(header.rpartition("''")[2]) == kept


@given(NAMES)
def test_a_name_that_was_made_safe_stays_as_it_is(name: str) -> None:
    once = safe_name(name)
    assert safe_name(once) == once or "%" in name


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(FakeDaemon(tmp_path_factory.mktemp("names"))) as url:
        yield url


def form_with(disposition: bytes) -> bytes:
    """A form whose file has that header."""
    return (
        b'--xx\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
        b'--xx\r\ncontent-disposition: form-data; name="file"; ' + disposition + b"\r\n\r\n{}\n\r\n"
        b"--xx--\r\n"
    )


@pytest.mark.parametrize(
    ("disposition", "kept"),
    [
        (rb'filename="a\"b.jsonl"', 'a"b.jsonl'),
        (b'filename="a%22b%0D%0Aset-cookie: x=y.jsonl"', 'a"bset-cookie: x=y.jsonl'),
        (b"filename*=UTF-8''a%0D%0Aset-cookie:%20x=y", "aset-cookie: x=y"),
        (b'filename="../../etc/passwd"', "passwd"),
        (b'filename="a\0b.jsonl"', "ab.jsonl"),
        ('filename="größe-行.jsonl"'.encode(), "größe-行.jsonl"),
        (b"filename=\"x\"; filename*=UTF-8''%E8%A1%8C.jsonl", "行.jsonl"),
        (b'filename=""', "file"),
    ],
)
def test_a_file_comes_back_under_its_name_and_no_header_of_it(
    url: str, disposition: bytes, kept: str
) -> None:
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("POST", "/v1/files", form_with(disposition), {"content-type": TYPE})
    file = json.loads(connection.getresponse().read())
    assert file["filename"] == kept
    connection.request("GET", f"/v1/files/{file['id']}/content")
    answer = connection.getresponse()
    assert answer.read() == b"{}\n" and answer.getheader("set-cookie") is None
    told = parameters((answer.getheader("content-disposition") or "").encode())
    assert told == {"filename": kept}
    connection.close()


def test_a_name_in_json_is_made_safe_too(url: str) -> None:
    body = {"bytes": 1, "filename": "a/b\r\nc\0.jsonl", "mime_type": "x", "purpose": "fine-tune"}
    assert httpx2.post(f"{url}/v1/uploads", json=body).json()["filename"] == "bc.jsonl"


def refused(body: bytes) -> ApiError:
    """How a form is refused."""
    with pytest.raises(ApiError) as caught:
        Form(TYPE).feed(body)
    return caught.value


def test_a_name_that_is_too_long_is_refused_and_not_cut() -> None:
    error = refused(form_with(b'filename="' + b"a" * (MAX_CHARACTERS + 1) + b'"'))
    assert error.param == "file" and f"wanted {MAX_CHARACTERS} or fewer" in error.message


def test_a_form_cannot_fill_the_memory() -> None:
    long = form_with(b'filename="' + b"a" * 20_000)
    assert "header size" in refused(long).message
    field = b'--xx\r\ncontent-disposition: form-data; name="f%d"\r\n\r\nx\r\n'
    many = b"".join(field % i for i in range(MAX_FIELDS + 1))
    assert f"more than {MAX_FIELDS} fields" in refused(many).message
    assert refused((field % 1) * 2).param == "f1"
