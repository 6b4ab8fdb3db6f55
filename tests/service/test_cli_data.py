"""`headrace data check`: what it tells, keeps and stops for."""

import gzip
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command import run, run_json
from headrace.engine import write_demo_data
from headrace.service.cli import bytes_bar, data_reports, result_cache
from headrace.service.cli.data_view import bars
from headrace.service.cli.output import Exit
from tiny import make_tiny_llama


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headrace" / "data-check"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_tiny_llama(tmp_path / "tiny", tied=True, seed=0)


def test_data_check_names_line_and_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": [{"role": "user", "content": "?"}]}\n')
    code, found = run_json(capsys, "data", "check", rows)
    assert code == Exit.FAILED and found["problems"][0].startswith("line 1: ")


PAIR = {"prompt": "Open?", "chosen": " Yes.", "rejected": " No."}


@pytest.mark.parametrize("with_model", [False, True])
def test_data_check_holds_preferences_to_their_method(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], with_model: bool
) -> None:
    rows, valid = tmp_path / "rows.jsonl", tmp_path / "valid.jsonl"
    rows.write_text(json.dumps(PAIR) + "\n")
    valid.write_text(json.dumps({"text": "Water runs."}) + "\n")
    command = ("data", "check", rows, *(("--model", model) if with_model else ()))
    code, found = run_json(capsys, *command)
    assert code == Exit.OK and found["formats"] == {"preference": 1}
    assert found["objective" if with_model else "method"] == "dpo"
    code, found = run_json(capsys, *command, "--method", "supervised")
    assert code == Exit.FAILED and "train with method dpo" in found["problems"][0]
    code, found = run_json(capsys, *command, "--valid", valid)
    assert code == Exit.FAILED
    assert "dpo learns from pairs" in found["validation"]["problems"][0]


def test_data_check_of_an_empty_file_is_no_pass(tmp_path: Path) -> None:
    tmp_path.joinpath("rows.jsonl").touch()
    assert run("data", "check", tmp_path / "rows.jsonl") == Exit.FAILED


def write_mixed(tmp_path: Path) -> tuple[Path, Path]:
    """An array of three formats, and validation rows of which one is in it."""
    completion = {"prompt": "Which gate?", "completion": "The north gate."}
    alpaca = {"instruction": "Name a gate.", "output": "South."}
    rows, valid = tmp_path / "rows.jsonl", tmp_path / "valid.json"
    rows.write_text(json.dumps([completion, alpaca, {"text": "Water runs."}], indent=1))
    valid.write_bytes(gzip.compress(json.dumps(alpaca).encode()))
    return rows, valid


def test_data_check_tells_formats_and_rows_in_both_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, valid = write_mixed(tmp_path)
    code, found = run_json(capsys, "data", "check", rows, "--valid", valid)
    assert code == Exit.OK and found["form"] == "JSON array"
    assert found["formats"] == {"prompt/completion": 1, "alpaca": 1, "text": 1}
    assert found["validation"]["form"] == "JSONL, gzip"
    assert found["validation"]["in_training"] == 1
    assert "line 6 (item 2) of the training data" in found["validation"]["warnings"][0]


def test_data_check_with_a_model_tells_what_train_on_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_tiny_llama(tmp_path / "tiny", tied=True, seed=0)
    rows, valid = write_mixed(tmp_path)
    given = ("data", "check", rows, "--valid", valid, "--model", model)
    code, found = run_json(capsys, *given, "--train-on", "all")
    assert code == Exit.OK and found["numerics"]["train_on"] == "all"
    assert found["trained_tokens"] == found["tokens"] - 3
    assert found["validation"]["notes"]["in_training"]["count"] == 1
    assert found["validation"]["in_training"] == 1
    assert found["validation"]["warnings"]
    assert run(*given) == Exit.OK
    shown = capsys.readouterr().out
    assert "validation rows:" in shown and "in the training data too" in shown
    valid.write_text(json.dumps({"text": "Fire is warm."}) + "\n")
    assert run(*given) == Exit.OK
    assert "in_training: 0" in capsys.readouterr().out  # none of them, and it says so


def test_data_check_names_a_file_that_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b"\x28\xb5\x2f\xfd....")
    code, found = run_json(capsys, "data", "check", rows)
    assert code == Exit.FAILED and "damaged or cut off" in found["problems"][0]
    assert run_json(capsys, "data", "check", rows)[1]["cached"] is False


def test_data_check_of_a_model_that_is_none_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(PAIR) + "\n")
    for model in ("smollm2", tmp_path):  # a daemon's name for one; a directory of something else
        assert run("data", "check", rows, "--model", model) == Exit.REFUSED
        assert f"headrace: {model}" in capsys.readouterr().err


def test_people_read_of_a_check_what_there_is_and_that_there_are_no_problems(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "The river is wide."}\n')
    assert run("data", "check", rows, "--model", model, "--text") == Exit.OK
    shown = capsys.readouterr().out.splitlines()
    assert {"rows: 1", "bad_rows: 0", "problems: none"} <= {*shown}
    assert [line for line in shown if "none" in line] == ["problems: none"]
    assert not any("sha256" in line for line in shown if not line.startswith("  name: "))


def test_data_check_with_a_model_counts_what_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_tiny_llama(tmp_path / "tiny", tied=True, seed=0)
    rows = write_demo_data(tmp_path / "rows").train
    code, found = run_json(capsys, "data", "check", rows, "--model", model)
    assert code == Exit.OK and found["rows"] == 64
    assert 0 < found["trained_tokens"] < found["tokens"]


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("the rows were looked at again")


def test_the_same_content_is_looked_at_once(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, valid = write_mixed(tmp_path)
    given = ("data", "check", rows, "--valid", valid, "--model", model)
    code, first = run_json(capsys, *given)
    monkeypatch.setattr(data_reports, "_with_model", never)
    again_code, again = run_json(capsys, *given)
    assert (code, first.pop("cached"), again.pop("cached")) == (again_code, False, True)
    assert first == again
    assert run(*given, "--text") == code
    assert "looked at before" in capsys.readouterr().out


@pytest.mark.parametrize("change", ["content", "option", "tokenizer", "fresh"])
def test_what_may_change_the_report_is_looked_at_anew(
    change: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, _ = write_mixed(tmp_path)
    given: list[str | Path] = ["data", "check", rows, "--model", model]
    run_json(capsys, *given)
    if change == "content":
        rows.write_text(rows.read_text().replace("South", "North"))
    elif change == "tokenizer":
        with (model / "tokenizer_config.json").open("a") as file:
            file.write(" ")
    else:
        given += ["--fresh"] if change == "fresh" else ["--max-seq-len", "77"]
    assert run_json(capsys, *given)[1]["cached"] is False


def test_only_the_last_results_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_cache, "KEPT", 3)
    for i in range(5):
        result_cache.remembered(tmp_path / "kept", f"k{i}", lambda: {"a": 1}, fresh=False)
    assert sorted(path.stem for path in (tmp_path / "kept").iterdir()) == ["k2", "k3", "k4"]


def test_a_result_that_cannot_be_kept_is_told_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "kept", Path("/proc/kept")):
        found = result_cache.remembered(folder, "k", lambda: {"a": 1}, fresh=False)
        assert found == {"a": 1, "cached": False}
    (tmp_path / "k.json").write_text('{"a": ')
    assert not result_cache.remembered(tmp_path, "k", lambda: {"a": 1}, fresh=False)["cached"]
    assert result_cache.remembered(tmp_path, "k", lambda: {"a": 1}, fresh=False)["cached"]


@pytest.mark.parametrize("with_model", [False, True])
def test_ctrl_c_ends_the_reading_and_tells_what_was_seen(
    with_model: bool,
    tmp_path: Path,
    model: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "Water runs."}\n' * 500)
    plain = bytes_bar.asked_to_stop

    def counting() -> Any:
        stopping = plain()
        ask: Callable[[], bool] = stopping.__enter__()
        asked = 0

        def stop() -> bool:
            nonlocal asked
            asked += 1
            if asked == 30:
                os.kill(os.getpid(), signal.SIGINT)
            return ask()

        return _As(stop, stopping)

    monkeypatch.setattr(data_reports, "asked_to_stop", counting)
    before = signal.getsignal(signal.SIGINT)
    options: list[str | Path] = ["--model", model] if with_model else []
    code, found = run_json(capsys, "data", "check", rows, *options)
    assert code == Exit.INTERRUPTED and found["complete"] is False
    assert found["rows" if with_model else "rows_seen"] == 30
    assert signal.getsignal(signal.SIGINT) is before
    assert not list(cache.glob("*.json")), "what is not complete is not remembered"
    monkeypatch.undo()


class _As:
    """A context manager that gives something else than the one inside it."""

    def __init__(self, given: Any, inside: Any) -> None:
        self._given, self._inside = given, inside

    def __enter__(self) -> Any:
        return self._given

    def __exit__(self, *how: Any) -> None:
        self._inside.__exit__(*how)


def test_a_column_is_named_by_the_key_that_it_is_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "Which?", "answer": "North."}\n{"question": "Which?"}\n')
    assert "unknown_format" in run_json(capsys, "data", "check", rows)[1]["reasons"]
    columns = ("--column", "prompt=question", "--column", "completion=answer")
    code, found = run_json(capsys, "data", "check", rows, *columns)
    assert code == Exit.FAILED and found["formats"] == {"prompt/completion": 1}
    assert found["reasons"] == {"missing_column": 1}
    assert "line 2: the row has no column 'answer'" in found["problems"][0]


@pytest.mark.parametrize("given", ["question", "prompt=", "reply=answer"])
def test_a_column_that_means_nothing_is_refused(given: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.touch()
    assert run("data", "check", rows, "--column", given) == Exit.USAGE


def test_lengths_are_drawn_as_bars() -> None:
    short, long = bars({"32": 10, "1024": 5})
    assert short.startswith("  up to   32 " + "#" * 40 + " 10")
    assert long.startswith("  up to 1024 " + "#" * 20 + "  ") and long.endswith(" 5")
