"""Every row's loss is written down, and rows that stand out are named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from datasets import write_dataset
from headrace.engine import TokenDataset
from headrace.engine.outliers import UNSEEN, find_outliers
from headrace.engine.report import FEWEST_ROWS
from headrace.engine.row_losses import LEDGER
from headrace.engine.row_order import epoch_order
from headrace.engine.token_files import PLACES
from reference import load_model
from runs import Run
from tiny import make_tiny_llama

LENGTHS = [24, 9, 17, 5, 30, 12, 3]


class Died(Exception):
    """Stands for SIGKILL."""


@pytest.fixture
def origin(tmp_path: Path) -> tuple[Path, Path]:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    return model, write_dataset(tmp_path / "data", LENGTHS, vocab=384)


def ledger(run: Run) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.fromfile(run.folder / "run" / LEDGER, dtype=np.float32).reshape(-1, len(LENGTHS))


@pytest.mark.parametrize("packing", ["on", "off"])
def test_the_ledger_holds_each_rows_mean_loss(
    origin: tuple[Path, Path], tmp_path: Path, packing: str
) -> None:
    """A rate that changes nothing to speak of: all rows are judged by the model as it was."""
    model, dataset = origin
    run = Run(
        tmp_path / "run", model, dataset, packing=packing, learning_rate=1e-12,
        batch_rows=4, microbatch_rows=2, num_epochs=2, max_steps=3,
    )  # fmt: skip
    run.go()
    reference = load_model(model)
    data = TokenDataset.open(dataset)
    expected = []
    for row in range(data.num_rows):
        ids, labels = (torch.from_numpy(values) for values in data.row(row))
        logits = reference(ids[None]).logits[0]
        expected.append(cross_entropy(logits[:-1], labels[1:]).item())
    found = ledger(run)
    assert found[0] == pytest.approx(expected, abs=1e-5)
    second = set(epoch_order(len(LENGTHS), seed=0, epoch=1)[:4].tolist())
    for row in range(len(LENGTHS)):
        wanted = expected[row] if row in second else -1
        assert found[1, row] == pytest.approx(wanted, abs=1e-5)


def test_a_run_that_died_has_the_ledger_of_one_that_did_not(
    origin: tuple[Path, Path], tmp_path: Path
) -> None:
    model, dataset = origin
    settings: dict[str, Any] = {"batch_rows": 2, "num_epochs": 2, "max_steps": None}
    plain = Run(tmp_path / "plain", model, dataset, **settings)
    plain.go()
    killed = Run(tmp_path / "killed", model, dataset, commit_every_steps=3, **settings)

    def die(event: object) -> None:
        if getattr(event, "type", "") == "metrics" and getattr(event, "step", 0) == 5:
            raise Died

    with pytest.raises(Died):
        killed.go(emit=die)
    killed.go()
    assert np.array_equal(ledger(killed), ledger(plain))
    assert (ledger(plain) != UNSEEN).all()


def test_a_run_may_keep_no_ledger(origin: tuple[Path, Path], tmp_path: Path) -> None:
    run = Run(tmp_path / "run", *origin, row_losses=False, max_steps=1)
    run.go()
    assert not (run.folder / "run" / LEDGER).exists()


@torch.no_grad()
def unlikely(model_dir: Path, num_tokens: int) -> list[int]:
    """A row of which each token is the one that the model least expects."""
    model, ids = load_model(model_dir), [7]
    while len(ids) < num_tokens:
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmin()))
    return ids


def test_rows_that_stand_out_are_told_with_their_lines(tmp_path: Path) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1)
    dataset = write_dataset(tmp_path / "data", [12] * 40, vocab=384)
    tokens = np.fromfile(dataset / "tokens.bin", dtype=np.uint32).reshape(40, 12)
    tokens[17] = unlikely(model, 12)
    tokens.tofile(dataset / "tokens.bin")
    trained = np.ones(tokens.size, dtype=np.uint8)
    trained.tofile(dataset / "trained.bin")
    places = [[0, 2 * row + 1, 0] for row in range(40)]  # every second line of the file
    np.asarray(places, dtype=np.int64).tofile(dataset / PLACES)
    report = json.loads((dataset / "report.json").read_text())
    (dataset / "report.json").write_text(json.dumps({**report, "files": [{"name": "t.jsonl"}]}))
    run = Run(tmp_path / "run", model, dataset, batch_rows=8, num_epochs=2, max_steps=8)
    run.go()
    told = [event for event in run.events if event.type == "row_losses"]
    assert [event.step for event in told] == [5, 8]
    above = told[-1].data["above"]
    assert above["count"] == 1
    assert told[-1].message == (
        "rows whose loss stands out in every epoch so far: 1 far above (t.jsonl, line 35)"
    )
    (row,) = above["rows"]
    assert (row["row"], row["file"], row["line"], row["item"]) == (17, "t.jsonl", 35, None)
    assert row["losses"][0] > 1.2 * told[-1].data["medians"][0]


def spread(seed: int, num_rows: int, **moved: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Losses about 2, with some rows (`r3=9.0`) put elsewhere."""
    losses = np.random.default_rng(seed).uniform(1.5, 2.5, num_rows).astype(np.float32)
    for name, value in moved.items():
        losses[int(name[1:])] = value
    return losses


def order(num_rows: int, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return epoch_order(num_rows, seed=1, epoch=epoch)


def test_a_row_has_to_stand_out_in_every_epoch() -> None:
    once = spread(1, 600, r3=40.0, r5=40.0, r7=0.001, r9=float("nan"))
    again = spread(2, 600, r3=40.0, r5=2.0, r7=0.001, r9=2.0)
    found = find_outliers([(once, order(600, 0)), (again, order(600, 1))], 600)
    assert found is not None
    assert (found.above, found.below) == ((1, [3]), (1, [7]))
    assert found.not_finite == (1, [9])
    assert found.medians == pytest.approx([2, 2], rel=0.1)


def test_rows_that_came_early_do_not_stand_out_for_that() -> None:
    """In an epoch in which the loss falls from 20 to 2, the first rows are no outliers."""
    places = order(2000, 0)
    losses = spread(3, 2000)
    losses[places] *= np.geomspace(10, 1, 2000).astype(np.float32)
    losses[places[-5]] = 30.0  # among late rows it is one
    found = find_outliers([(losses, places)], 2000)
    assert found is not None
    assert found.above[1][0] == places[-5]
    assert not set(found.above[1]).intersection(places[:500].tolist())


def test_a_row_that_stands_out_while_the_loss_falls_is_found() -> None:
    """The loss falls by two thirds within the rows that are compared; one row is twice as high."""
    places = order(200, 0)
    losses = spread(5, 200)
    losses[places] *= np.geomspace(3, 1, 200).astype(np.float32)
    losses[places[150]] = 6.5  # as the first ones are
    found = find_outliers([(losses, places)], 200)
    assert found is not None and found.above == (1, [int(places[150])])


def test_few_or_equal_rows_have_no_outliers() -> None:
    few = FEWEST_ROWS - 1
    assert find_outliers([(spread(1, few), order(few, 0))], few) is None
    same = np.full(100, 2.0, dtype=np.float32)
    found = find_outliers([(same, order(100, 0))], 100)
    assert found is not None and found.above == found.below == (0, [])


def test_rows_that_an_epoch_has_not_come_to_are_judged_by_those_before() -> None:
    first = spread(1, 100, r3=60.0)
    second = spread(2, 100)
    second[order(100, 1)[30:]] = UNSEEN
    found = find_outliers([(first, order(100, 0)), (second, order(100, 1))], 100)
    assert found is not None
    assert 3 in found.above[1] or 3 in order(100, 1)[:30]
