"""What a file holds is told by its content, and its rows come one by one, whole, with places."""

import gzip
import hashlib
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from awkward.case import table
from headrace.engine import row_arrays
from headrace.engine.data_report import DataProblem
from headrace.engine.form_check import LOOK_BYTES, check_rows
from headrace.engine.row_files import GRACE_SECONDS, RowFile

ROWS = [{"text": f'[{i}], "{{ \\ é'} for i in range(5)]


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
}


def read(path: Path) -> list[Any]:
    with RowFile(path) as file:
        return [json.loads(text.data) for text in file]


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "rows.txt"
    path.write_bytes(content)
    return path


def lines(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf", b" \n "])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("packing", PACKINGS)
def test_an_array_is_read_item_by_item(
    tmp_path: Path, mark: bytes, indent: int | None, packing: str
) -> None:
    content = mark + json.dumps(ROWS, indent=indent).encode()
    path = write(tmp_path, PACKINGS[packing](content))
    assert read(path) == ROWS
    with RowFile(path) as file:
        assert file.form == (f"JSON array, {packing}" if packing else "JSON array")


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_lines_may_be_packed_in_several_pieces(tmp_path: Path, packing: str) -> None:
    pack = PACKINGS[packing]
    path = write(tmp_path, pack(lines(ROWS[:2])) + pack(b"") + pack(lines(ROWS[2:])))
    assert read(path) == ROWS
    with RowFile(path) as file:
        assert file.form == f"JSONL, {packing}"


def test_items_are_named_by_number_and_the_line_that_they_begin_on(tmp_path: Path) -> None:
    path = write(tmp_path, b'[\n {"a": 1},\n\n {"b":\n 2}, {"c": 3}\n]\n')
    with RowFile(path) as file:
        places = [str(text.place) for text in file]
    assert places == [f"rows.txt, line {n}" for n in ("2 (item 1)", "4 (item 2)", "5 (item 3)")]


def test_the_hash_is_of_the_file_as_it_lies(tmp_path: Path) -> None:

    content = gzip.compress(json.dumps(ROWS).encode())
    with RowFile(write(tmp_path, content)) as file:
        list(file)
        assert file.describe()["sha256"] == hashlib.sha256(content).hexdigest()
        assert file.bytes_read == file.size == len(content)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='[]{},"\\é\n a', max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('{"', max_size=2), inner),
    max_leaves=9,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(JSON, min_size=1, max_size=6), st.integers(1, 9), st.sampled_from([None, 1]))
def test_items_come_whole_however_the_reads_fall(
    items: list[Any], size: int, indent: int | None
) -> None:
    content = json.dumps(items, indent=indent, ensure_ascii=False).encode()
    chunks = iter([content[:size], *(content[i : i + 1] for i in range(size, len(content)))])
    found = row_arrays.split_array(lambda _: next(chunks, b""), name="rows")
    assert [json.loads(item) for _, item in found] == items


def test_an_array_of_nothing_has_no_rows(tmp_path: Path) -> None:
    assert read(write(tmp_path, b"[ \n ]")) == [] == read(write(tmp_path, b""))


def test_an_item_that_is_no_json_costs_that_item_alone(tmp_path: Path) -> None:
    with RowFile(write(tmp_path, b"[{'a': 1}, {}}, {\"b\": [2, 3]}, nan]")) as file:
        assert [text.data for text in file] == [b"{'a': 1}", b"{}}", b'{"b": [2, 3]}', b"nan"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'[{"a": 1},\n {"b": ', "item that begins on line 2 is the last"),
        (b'[{"a": "x', "does not end; is the file cut off?"),
        (b'[{"a": 1}]\n[{"b": 1}]\n', "the array ends on line 1, but more follows"),
        (gzip.compress(b"{}\n" * 999, mtime=0)[:-12], "damaged or cut off"),
        (b"\x1f\x8bnonsense", "damaged or cut off"),
        (b"\x28\xb5\x2f\xfd____", "zstd data is damaged or cut off"),
        (zstandard.compress(b"{}\n" * 999)[:-3], "zstd data is damaged or cut off"),
        (zstandard.compress(b"{}\n") + b"more", "zstd data is damaged or cut off"),
        (b"PAR1____", "Parquet data cannot be read"),
        (table([{"text": "a"}] * 9)[:60], "Parquet data cannot be read"),
        (b"PK\x03\x04____", "zip archive"),
        ('{"text": "a"}'.encode("utf-16"), "write it as UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_says_why_and_what_to_do(
    tmp_path: Path, content: bytes, said: str
) -> None:
    with pytest.raises(DataProblem) as caught:
        read(write(tmp_path, content))
    assert said in str(caught.value) and "rows.txt" in str(caught.value)


def test_an_item_above_the_limit_ends_the_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_arrays, "MAX_LINE_BYTES", 10_000)
    monkeypatch.setattr(row_arrays, "READ_BYTES", 1000)
    path = write(tmp_path, b'[{"a": 1}, ["' + b"x" * 50_000 + b'"]]')
    with pytest.raises(DataProblem, match="longer than"):
        read(path)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_large_array_passes_through_little_memory(tmp_path: Path, packing: str) -> None:
    noise = random.Random(0)
    content = json.dumps([{"text": noise.randbytes(300).hex()} for _ in range(20_000)]).encode()
    path = write(tmp_path, PACKINGS[packing](content))
    assert len(content) > 12_000_000
    tracemalloc.start()
    with RowFile(path) as file:
        assert sum(1 for _ in file) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000


def test_what_grows_ten_thousandfold_passes_through_little_memory(tmp_path: Path) -> None:
    path = write(tmp_path, zstandard.compress(b'{"text": "' + b"x" * 200_000_000 + b'"}'))
    assert path.stat().st_size < 20_000
    tracemalloc.start()
    with RowFile(path) as file:
        (text,) = file
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(text.data) > 2**26, "its beginning, so that it is seen to be too long"
    assert peak < 6 * 2**26


def test_a_table_gives_its_rows_with_their_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, table([{"text": f"row {i}", "n": i} for i in range(600)]))
    with RowFile(path) as file:
        assert file.form == "Parquet"
        texts = list(file)
        assert file.bytes_read == file.size and file.share_taken == 1
        assert file.describe()["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [json.loads(text.data)["n"] for text in texts] == list(range(600))
    assert str(texts[299].place) == "rows.txt, row 300"


def test_fields_that_a_table_fills_with_null_are_not_there(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"tools": [{"name": "a", "parameters": {"x": {"type": "string"}}}], "text": "1"},
        {"tools": [{"name": "b", "parameters": {"y": {"type": "number"}}}], "text": None},
    ]
    assert read(write(tmp_path, table(rows))) == [rows[0], {"tools": rows[1]["tools"]}]


@pytest.mark.parametrize(
    ("kind", "values", "why"),
    [
        (pa.map_(pa.int32(), pa.string()), [[(1, "a")]], "key must be str"),
        (pa.timestamp("ns"), [1], "Nanosecond"),
        (pa.timestamp("ms"), [10**17], "days=1157407407"),
        (pa.date32(), [10**8], "out of range"),
        (pa.string(), [b"\xff\xfe"], "utf-8"),
    ],
    ids=["numbers as keys", "nanoseconds", "a far time", "a far day", "no UTF-8"],
)
def test_a_value_that_python_has_no_form_for_is_a_problem_of_the_file(
    tmp_path: Path, kind: pa.DataType, values: list[Any], why: str
) -> None:
    if kind == pa.string():  # which pyarrow makes of no such bytes itself
        column = pa.array(values, pa.binary()).view(pa.string())
    else:
        column = pa.array(values, kind)
    path = tmp_path / "rows"
    pq.write_table(pa.table({"text": ["a"], "x": column}), path)
    with pytest.raises(DataProblem, match=f"rows: its Parquet data cannot be read .*{why}"):
        read(path)


def test_what_json_has_no_form_for_is_no_text(tmp_path: Path) -> None:
    path = write(tmp_path, table([{"text": b"\x00\x01"}]))
    assert read(path) == [{"text": {"no JSON": "bytes"}}]


@pytest.mark.parametrize(
    ("module", "content", "said"),
    [
        ("zstandard", zstandard.compress(b"{}"), r"headrace\[zstd\]"),
        ("pyarrow.parquet", table([{"text": "a"}]), r"headrace\[parquet\]"),
    ],
)
def test_what_is_not_installed_is_said_with_the_way_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, content: bytes, said: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DataProblem, match=said):
        read(write(tmp_path, content))


def test_a_line_without_end_is_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred bytes of gzip can stand for a line of any length."""
    monkeypatch.setattr("headrace.engine.row_files.MAX_LINE_BYTES", 300)
    path = tmp_path / "rows.jsonl"
    path.write_bytes(gzip.compress(b'{"text": "One."}\n' + b"x" * 1_000_000 + b'\n{"text": "b"}\n'))
    with RowFile(path, until=time.monotonic()) as file:
        assert len(list(file)) == 2 and file.ended_early
    with RowFile(path) as file:
        assert len(list(file)) == 3 and not file.ended_early
    check = check_rows(path, limit_seconds=0, max_problems=None)
    assert not check.complete


@pytest.mark.parametrize("part", [b"[", b"1,", b"{}"])
def test_an_item_without_end_is_given_up_in_time(tmp_path: Path, part: bytes) -> None:
    path = tmp_path / "rows.json"
    path.write_bytes(gzip.compress(b"[[" + part * 2 * row_arrays.ASK_EVERY))
    with RowFile(path, until=time.monotonic()) as file:
        assert list(file) == [] and file.ended_early
    assert not check_rows(path, limit_seconds=0).complete


def test_a_file_that_stands_for_nothing_is_given_up_in_time(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(gzip.compress(b"") * 20_000 + gzip.compress(b'{"text": "a"}'))
    with RowFile(path, until=-GRACE_SECONDS) as file:
        assert list(file) == [] and file.ended_early and file.bytes_read < file.size
    with RowFile(path) as file:
        assert len(list(file)) == 1 and not file.ended_early


@pytest.mark.parametrize("content", [b'{"text": "a"}\n' * 9, b'[{"text": "a"}]'])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_half_a_row_is_none(tmp_path: Path, content: bytes, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "rows"
    path.write_bytes(pack(content))
    with RowFile(path, until=-GRACE_SECONDS) as file:
        assert list(file) == [] and file.ended_early


def test_a_row_that_would_take_long_is_left_to_the_preparation(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + b"{" + b" " * LOOK_BYTES + b'"x": \n')
    look = check_rows(path, limit_seconds=60)
    assert (look.num_rows, look.problems, look.complete) == (2, [], False)
    assert len(check_rows(path).problems) == 1
