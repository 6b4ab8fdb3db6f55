"""The long form: sums are judged as people would, contenders learn the same, rows are kept."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import long_form
from bench.sums import Sum, last_number, marked_number, score
from tiny import make_tiny_llama

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers


@pytest.mark.parametrize(
    ("text", "marked", "last"),
    [
        ("2 + 3 = 5\n#### 5", 5, 5),
        ("#### $1,234.50.", 1234.5, 1234.5),
        ("#### -7 apples, not 8", -7, 8),
        ("it is 12", None, 12),
        ("####", None, None),
    ],
)
def test_an_answer_is_the_number_behind_the_mark(
    text: str, marked: float | None, last: float | None
) -> None:
    assert (marked_number(text), last_number(text)) == (marked, last)


def test_sums_are_scored_by_the_mark_and_by_the_last_number() -> None:
    sums = [Sum(prompt=[], answer=5), Sum(prompt=[], answer=6)]
    assert score(sums, ["#### 5", "6"]) == {"exact": 0.5, "last": 1.0}
    assert score(sums, ["#### 4", "nothing"]) == {"exact": 0.0, "last": 0.0}


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    rows = [
        [{"role": "user", "content": f"{i} + {i + 1}"},
         {"role": "assistant", "content": f"{i} + {i + 1} = {2 * i + 1}\n#### {2 * i + 1}"}]
        for i in range(12)
    ]  # fmt: skip
    files = {"train": rows[:8], "eval": rows[8:]}
    for name, chosen in files.items():
        lines = [json.dumps({"messages": messages}) + "\n" for messages in chosen]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    model = make_tiny_llama(tmp_path / "tiny", tied=True, seed=1)
    given: dict[str, Any] = {
        "results": tmp_path / "rows.jsonl", "model": model, "work-dir": tmp_path,
        "train": tmp_path / "train.jsonl", "eval": tmp_path / "eval.jsonl", "device": "cpu",
        "compute-dtype": "float32", "epochs": 2, "seeds": 1, "batch-rows": 4,
        "microbatch-rows": 2, "max-new-tokens": 3, "answer-rows": 3, "tolerance": 1e-4,
        "full-rate": 1e-3,
    }  # fmt: skip
    return [text for key, value in given.items() for text in (f"--{key}", str(value))]


def test_contenders_learn_the_same_and_what_is_there_is_left_alone(
    tmp_path: Path,
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = tmp_path / "rows.jsonl"
    results.write_text(json.dumps({"name": "full-0-peer", "failed": "1"}) + "\n")

    def run(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", ["long_form", *command, *more])
        return long_form.main()

    assert run("--only", "full-*", "--only", "untrained") == 0
    assert run("--only", "*lora-*") == 0
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    names = [row["name"] for row in rows if "result" in row]
    assert sorted(names) == sorted(long_form.contenders(1))
    found = {row["name"]: row["result"] for row in rows if "result" in row}
    assert found["full-0-headrace"]["losses"] == pytest.approx(
        found["full-0-peer"]["losses"], abs=1e-5
    )
    assert found["full-0-headrace"]["eval_loss"] < found["untrained"]["eval_loss"]
    before = results.read_text()
    assert run() == 0 and results.read_text() == before
    shown = capsys.readouterr().out
    assert "holds: evaluation losses at most 0.0" in shown and "in 3 pairs" in shown
    assert [path.name for path in tmp_path.iterdir() if "long-form" in path.name] == []


def test_losses_that_are_apart_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "rows.jsonl"
    for name, loss in (("full-0-headrace", 1.02), ("full-0-peer", 1.0)):
        result = {"eval_loss": loss, "exact": 0.1, "last": 0.2}
        with results.open("a") as file:
            file.write(json.dumps({"name": name, "result": result}) + "\n")
    monkeypatch.setattr(sys, "argv", ["long_form", "--results", str(results), "--table"])
    assert long_form.main() == 1
    assert "MISSED: evaluation losses at most 2.00 %" in capsys.readouterr().out
