"""The bench of data checks finds all that it planted, with a tiny model."""

from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bench.data_check import COPY, LONG, MUTE, make_rows, structure, tokens
from tiny import make_tiny_llama


def test_what_is_planted_is_counted(tmp_path: Path) -> None:
    made = make_rows(tmp_path / "rows.jsonl", 2 * LONG, 600 * 2 * LONG)
    assert (made.rows, made.copies, made.mute, made.long) == (2 * LONG, 2, 2, 2)
    assert len({COPY, MUTE, LONG}) == 3
    size = (tmp_path / "rows.jsonl").stat().st_size
    assert 0.8 < size / (600 * 2 * LONG) < 1.2


def test_both_looks_find_what_is_planted(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "tiny", tied=True, seed=0, max_position_embeddings=4096)
    made = make_rows(tmp_path / "rows.jsonl", 1_100, 500_000)
    answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
    structure(made, answers)
    tokens(made, model, answers)
    for found in (answers.get(), answers.get()):
        assert found["counts_held"] and found["memory_held"] and found["rows"] == 1_100
