"""The short form: every method learns what it learns in memory, and is told when it does not."""

import json
import sys
from pathlib import Path

import pytest

from bench import accuracy
from bench.inputs import shortest_rows
from tiny import make_tiny_llama

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers


def test_the_shortest_rows_keep_their_order(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("4444\n1\n333\n22\n55555\n")
    chosen = shortest_rows(file, 3, tmp_path / "some.jsonl")
    assert chosen.read_text() == "1\n333\n22\n"
    assert shortest_rows(file, None, tmp_path / "all.jsonl") == file


def test_every_method_agrees_with_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        [{"role": "user", "content": f"{i} + {i}"}, {"role": "assistant", "content": f"{2 * i}"}]
        for i in range(8)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"messages": one}) + "\n" for one in rows))
    model = make_tiny_llama(tmp_path / "tiny", tied=True, seed=1)
    results = tmp_path / "results.jsonl"
    command = ["accuracy", "--model", model, "--train", file, "--eval", file, "--results", results,
               "--steps", 3, "--shortest", 6, "--shortest-eval", 4, "--lora-lr", "1e-3",
               "--tolerance", "1e-5"]  # fmt: skip

    def run(*more: object) -> int:
        monkeypatch.setattr(sys, "argv", [str(one) for one in (*command, *more)])
        return accuracy.main()

    assert run("--method", "full", "--work-dir", tmp_path / "one") == 0
    assert run("--work-dir", tmp_path / "two") == 0
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["method"] for row in found] == ["full", "lora", "qlora"]
    assert all(row["weights"]["largest_relative_difference"] < 1e-3 for row in found)
    written = [row["payload_bytes_of_last_step"]["nvme_write"] for row in found]
    assert written[1] == written[2] < written[0]
    found[0]["agrees"] = False
    results.write_text(json.dumps(found[0]) + "\n")
    assert run("--method", "full", "--work-dir", tmp_path / "three") == 1
    assert "full  DIFFERS: evaluation loss" in capsys.readouterr().out
