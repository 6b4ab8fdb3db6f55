"""Parquet files that stand for more memory than there is end in a refusal, and end nothing else."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from headrace.service import survey
from headrace.service.errors import ApiError
from headrace.service.survey import survey_file

GB = 10**9
LONG = 50_000_000  # characters of a text that every row has; on disk there is one of it, packed
# In a process of its own: this one loads no reader of Parquet.
WRITE = """
import sys
import pyarrow as pa, pyarrow.parquet as pq
kind, path = sys.argv[1:]
if kind == "rows":
    rows = [{"messages": [{"role": "user", "content": f"q {i}"},
                          {"role": "assistant", "content": "a" * i}]} for i in range(1, 101)]
    table = pa.Table.from_pylist(rows)
elif kind == "one text many times":
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), ["a" * LONG])
    table = pa.table({"text": texts})
elif kind == "nanoseconds":
    table = pa.table({"text": ["a"], "made": pa.array([1], pa.timestamp("ns"))})
else:
    items = pa.ListArray.from_arrays([0, 300_000_000], pa.nulls(300_000_000, pa.int8()))
    table = pa.table({"text": items})
pq.write_table(table, path, compression="zstd", row_group_size=10_000)
""".replace("LONG", str(LONG))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parquet")


def written(folder: Path, kind: str) -> Path:
    path = folder / f"{kind.replace(' ', '-')}.parquet"
    subprocess.run([sys.executable, "-c", WRITE, kind, str(path)], check=True)
    return path


def look(path: Path) -> survey.Survey:
    return survey_file(path, param="training_file", name="rows.parquet")


def test_a_table_is_looked_at_apart_as_it_would_be_here(folder: Path) -> None:
    path = written(folder, "rows")
    found = look(path)
    assert found.num_rows == 100 and not found.is_estimate
    problems, here = survey.look_here(path, "supervised", {})
    assert (list(problems), here) == ([], found)


@pytest.mark.parametrize("kind", ["one text many times", "one list of millions"])
def test_what_stands_for_more_memory_than_there_is_is_refused(folder: Path, kind: str) -> None:
    path = written(folder, kind)
    assert path.stat().st_size < 2_000_000, "a bomb is small"
    before = psutil.Process().memory_info().rss
    with pytest.raises(ApiError) as caught:
        look(path)
    assert (caught.value.status, caught.value.param) == (400, "training_file")
    said = caught.value.message
    assert "rows.parquet: reading its Parquet data takes more memory" in said
    assert "row_group_size" in said and path.name not in said
    assert psutil.Process().memory_info().rss - before < GB / 10


def test_what_ended_the_look_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The refusal speaks of memory where no Python error is told; the daemon's log has what was."""
    path, python = written(tmp_path, "rows"), tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ApiError):
        look(path)
    (told,) = [one for one in caplog.records if one.name == "headrace.api"]
    assert told.levelname == "WARNING"
    assert (vars(told)["status"], vars(told)["said"]) == (3, "no such library\n")


def test_a_table_that_cannot_be_read_is_refused_with_the_true_reason(folder: Path) -> None:
    with pytest.raises(ApiError) as caught:
        look(written(folder, "nanoseconds"))
    assert "Nanosecond" in caught.value.message and "memory" not in caught.value.message


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("raise RuntimeError('the reader is broken')", "the reader is broken"),
        ("raise MemoryError", "more memory"),
        ("import os; os.abort()", "more memory"),
    ],
)
def test_an_end_without_an_answer_is_told_by_what_it_was(
    folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, wanted: str
) -> None:
    stand_in = folder / "python"
    stand_in.write_text(f"#!{sys.executable}\n{line}\n")
    stand_in.chmod(0o755)
    path = folder / f"{abs(hash(line))}.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setattr(sys, "executable", str(stand_in))
    with pytest.raises(ApiError, match=f"rows.parquet: .*{wanted}"):
        look(path)
