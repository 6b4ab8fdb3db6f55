"""A step over packed rows is the step over the rows alone, in loss, gradients and isolation."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from datasets import write_dataset
from headrace.engine import (
    SettingsChanged,
    StopReason,
    TokenDataset,
    TrainConfig,
    read_model_spec,
)
from headrace.engine.packing import step_rows
from headrace.engine.token_files import new_dataset
from reference import load_model, padded, relative_differences, train_reference
from runs import Run, assert_same_state
from tiny import make_tiny_llama

LENGTHS = [9, 17, 5, 30, 12, 21, 8, 26, 14, 11]
ONE_STEP = {"max_steps": 1, "batch_rows": 10, "clip_mode": "none", "microbatch_tokens": 40}


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_tiny_llama(folder / "model", tied=request.param, seed=1)


LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0],
    "original_max_position_embeddings": 15,
    "factor": 4.0,
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "data", LENGTHS, vocab=384)


def rows_alone(model: Path, dataset: Path, config: TrainConfig) -> tuple[float, dict[str, Any]]:
    """Loss and gradients of the first step, from transformers, row by row and without padding."""
    oracle = load_model(model)
    data = TokenDataset.open(dataset)
    rows = step_rows(data.lengths, padded(config), 1)
    count = sum(int((data.row(i)[1][1:] != -100).sum()) for i in rows)
    total = 0.0
    for i in rows:
        ids, labels = (torch.from_numpy(values)[None] for values in data.row(i))
        logits = oracle(input_ids=ids, use_cache=False).logits.double()
        loss = cross_entropy(logits[0, :-1], labels[0, 1:], reduction="sum")
        torch.autograd.backward(loss / count)
        total += float(loss.detach())
    return total / count, {name: param.grad for name, param in oracle.named_parameters()}


def first_moments(run: Run) -> dict[str, torch.Tensor]:
    """exp_avg by the checkpoint's names: a tenth of the gradient after the first step."""
    state = run.state()
    found: dict[str, list[torch.Tensor]] = {}
    for record in read_model_spec(run.config.model).records:
        flat = state[f"{record.name}.exp_avg"]
        for param in record.params:
            piece = flat[param.offset : param.offset + param.num_elements].view(param.shape)
            found.setdefault(param.name, []).append(piece)
    return {name: torch.cat(pieces) for name, pieces in found.items()}


def test_packed_loss_and_gradients_are_those_of_the_rows_alone(
    model: Path, dataset: Path, tmp_path: Path
) -> None:
    check_against_rows_alone(model, dataset, tmp_path)


def test_positions_that_stretch_with_a_row_stretch_with_it_alone(
    dataset: Path, tmp_path: Path
) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=1, rope_scaling=LONGROPE)
    check_against_rows_alone(model, dataset, tmp_path)


def check_against_rows_alone(model: Path, dataset: Path, folder: Path) -> None:
    run = Run(folder, model, dataset, **ONE_STEP)
    run.go()
    loss, gradients = rows_alone(model, dataset, run.config)
    (step,) = run.metrics()
    assert step["loss"] == pytest.approx(loss, rel=1e-6)
    moments = {name: moment / (1 - run.config.beta1) for name, moment in first_moments(run).items()}
    differences = relative_differences(moments, gradients)
    assert max(differences.values()) < 2e-6, differences


def write_rows(path: Path, rows: list[np.ndarray[Any, Any]], *, trained: int) -> Path:
    """A data set in which one row alone is trained."""
    with new_dataset(path) as writer:
        for i, row in enumerate(rows):
            writer.append(row.tolist(), [i == trained] * len(row))
        writer.finish({"trained_tokens": len(rows[trained]) - 1})
    return path


@pytest.mark.parametrize("trained", [2, 7])
def test_changing_every_other_row_changes_no_bit_of_loss_and_gradients(
    model: Path, tmp_path: Path, trained: int
) -> None:
    rng = np.random.default_rng(3)
    one, other = ([rng.integers(0, 384, n) for n in LENGTHS] for _ in range(2))
    other[trained] = one[trained]
    runs = [
        Run(tmp_path / name, model, write_rows(tmp_path / f"{name}-rows", rows, trained=trained),
            **ONE_STEP)
        for name, rows in (("one", one), ("other", other))
    ]  # fmt: skip
    for run in runs:
        run.go()
    assert runs[0].metrics()[0]["loss"] == runs[1].metrics()[0]["loss"]
    assert_same_state(runs[0].state(), runs[1].state())


def test_packed_training_and_evaluation_follow_plain_pytorch(model: Path, tmp_path: Path) -> None:
    """Twenty clipped steps; rows longer than the budget among both kinds of rows."""
    training = write_dataset(tmp_path / "training", LENGTHS, vocab=384)
    held_out = write_dataset(tmp_path / "held-out", [7, 29, 13, 3, 41], vocab=384, seed=5)
    run = Run(
        tmp_path,
        model,
        training,
        eval_dataset=str(held_out),
        max_steps=20,
        batch_rows=5,
        microbatch_tokens=24,
        max_grad_norm=0.5,
    )
    run.go()
    expected = train_reference(model, training, run.config, eval_dataset_dir=held_out)
    losses = [m["loss"] for m in run.metrics()]
    assert losses == pytest.approx(expected.losses, abs=1e-5)
    evals = [event.data["eval_loss"] for event in run.events if event.type == "eval"]
    assert evals == pytest.approx([expected.eval_losses[0], expected.eval_losses[20]], abs=1e-5)


def test_packed_and_padded_steps_tell_the_same_loss_and_what_they_computed(
    model: Path, dataset: Path, tmp_path: Path
) -> None:
    settings = {"max_steps": 6, "batch_rows": 5, "microbatch_rows": 2}
    packed = Run(tmp_path / "packed", model, dataset, **settings)
    side_by_side = Run(tmp_path / "padded", model, dataset, packing="off", **settings)
    for run in (packed, side_by_side):
        run.go()
    losses = [m["loss"] for m in side_by_side.metrics()]
    assert [m["loss"] for m in packed.metrics()] == pytest.approx(losses, rel=1e-5)
    for one, other in zip(packed.metrics(), side_by_side.metrics(), strict=True):
        assert one["num_tokens"] == other["num_tokens"] == one["num_computed_tokens"]
        assert other["num_computed_tokens"] > other["num_tokens"]


def pause_after(steps: int) -> Callable[[], StopReason | None]:
    """A poll that lets so many steps through."""
    polls: Iterator[StopReason | None] = iter([*[None] * steps, "pause"])
    return lambda: next(polls)


NEW = ("packing", "microbatch_tokens")  # in the numerics key since rows are packed


def test_a_run_begun_before_packing_goes_on_padded(
    model: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Run(tmp_path / "whole", model, dataset, packing="off")
    whole.go()
    old = Run(tmp_path / "begun", model, dataset, packing="off")
    key = {name: value for name, value in old.config.numerics_key.items() if name not in NEW}
    with monkeypatch.context() as patch:
        patch.setattr(TrainConfig, "numerics_key", key)
        assert old.go(poll=pause_after(2)).outcome == "paused"
    new = Run(tmp_path / "begun", model, dataset)
    assert new.config.packing == "on"
    assert new.go().outcome == "succeeded"
    assert any("before rows were packed" in event.message for event in new.events)
    assert_same_state(new.state(), whole.state())


def test_a_packed_run_does_not_go_on_padded(model: Path, dataset: Path, tmp_path: Path) -> None:
    Run(tmp_path, model, dataset).go(poll=pause_after(1))
    with pytest.raises(SettingsChanged, match="packing was 'on', now 'off'"):
        Run(tmp_path, model, dataset, packing="off").go()
