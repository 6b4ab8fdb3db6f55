"""Prepared data sets of random tokens, written without a tokenizer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.engine.token_files import OFFSETS, REPORT, TOKENS, TRAINED


def write_dataset(path: Path, lengths: Sequence[int], *, vocab: int, seed: int = 0) -> Path:
    """Rows of these lengths (tokens); about the second half of each row is trained."""
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    trained = [np.arange(n) >= rng.integers(1, n - 1) for n in lengths]
    rng.integers(0, vocab, sum(lengths)).astype(np.uint32).tofile(path / TOKENS)
    np.concatenate(trained).astype(np.uint8).tofile(path / TRAINED)
    np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64).tofile(path / OFFSETS)
    count = sum(int(mask[1:].sum()) for mask in trained)
    (path / REPORT).write_text(json.dumps({"trained_tokens": count}))
    return path


def write_preferences(
    path: Path, answers: Sequence[tuple[int, int]], *, vocab: int, seed: int = 0
) -> Path:
    """Preferences whose chosen and rejected answers have these lengths (tokens), with a prompt of
    two tokens that both share; every other token is trained."""
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    rows = []
    for lengths in answers:
        prompt = rng.integers(0, vocab, 2)
        rows += [np.concatenate([prompt, rng.integers(0, vocab, n - 2)]) for n in lengths]
    ends = np.cumsum([0, *(len(row) for row in rows)])
    np.concatenate(rows).astype(np.uint32).tofile(path / TOKENS)
    np.concatenate([np.arange(len(row)) > 1 for row in rows]).astype(np.uint8).tofile(
        path / TRAINED
    )
    ends.astype(np.int64).tofile(path / OFFSETS)
    report = {"trained_tokens": int(ends[-1]) - 2 * len(rows), "objective": "dpo"}
    (path / REPORT).write_text(json.dumps(report))
    return path


def write_rows(path: Path, ids: Any) -> Path:
    """Rows of equal length, (rows, tokens), every token of them trained."""
    path.mkdir(parents=True)
    count, length = ids.shape
    ids.astype(np.uint32).tofile(path / TOKENS)
    np.ones(ids.size, dtype=np.uint8).tofile(path / TRAINED)
    (length * np.arange(count + 1)).astype(np.int64).tofile(path / OFFSETS)
    (path / REPORT).write_text(json.dumps({"trained_tokens": count * (length - 1)}))
    return path
