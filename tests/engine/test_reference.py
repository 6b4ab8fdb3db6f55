"""The oracle is checked against arithmetic written out by hand, so that it can be trusted."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from headrace.engine import TokenDataset, TrainConfig
from headrace.engine.data import step_microbatches
from headrace.engine.lr_schedule import rate_at
from reference import (
    evaluate,
    learning_rate,
    load_model,
    padded,
    read_checkpoint,
    relative_differences,
    train_reference,
)
from tiny import VOCAB_SIZE, make_tiny_llama

ROW_LENGTHS = (9, 23, 14, 6, 17, 11, 20, 8)


def write_dataset(path: Path, *, first_token: int = 1) -> Path:
    """Rows of random tokens after a `first_token`; their first three tokens are not trained."""
    path.mkdir()
    generator = np.random.default_rng(5)
    offsets = np.cumsum([0, *ROW_LENGTHS]).astype(np.int64)
    tokens = generator.integers(0, VOCAB_SIZE, offsets[-1], dtype=np.uint32)
    tokens[offsets[:-1]] = first_token
    trained = np.concatenate([np.arange(length) >= 3 for length in ROW_LENGTHS])
    tokens.tofile(path / "tokens.bin")
    trained.astype(np.uint8).tofile(path / "trained.bin")
    offsets.tofile(path / "offsets.bin")
    (path / "report.json").write_text(json.dumps({"trained_tokens": int(trained.sum())}))
    return path


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", tied=True, seed=3, layers=2)


@pytest.fixture(scope="module")
def dataset_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "rows")


def config_for(model_dir: Path, dataset_dir: Path, **changes: Any) -> TrainConfig:
    values = {"learning_rate": 1e-3, "batch_rows": 4, "microbatch_rows": 4, "max_steps": 3}
    return TrainConfig(model=str(model_dir), dataset=str(dataset_dir), **{**values, **changes})


def test_steps_are_those_of_adamw_written_out_by_hand(model_dir: Path, dataset_dir: Path) -> None:
    config = config_for(
        model_dir, dataset_dir, seed=7, max_grad_norm=0.05, weight_decay=0.1, eps=1e-3
    )
    losses, norms, weights = train_by_hand(model_dir, TokenDataset.open(dataset_dir), config)

    run = train_reference(model_dir, dataset_dir, config)

    assert min(norms) > 2 * config.max_grad_norm  # clipping bites in every step
    assert run.losses == pytest.approx(losses, rel=1e-6)
    assert run.grad_norms == pytest.approx(norms, rel=1e-5)
    assert max(relative_differences(run.state, weights).values()) < 1e-6


def train_by_hand(
    model_dir: Path, dataset: TokenDataset, config: TrainConfig
) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Three steps in float64, the formulas of AdamW spelled out: losses, norms and weights."""
    model = load_model(model_dir).double()
    weights = dict(model.named_parameters())
    m = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    v = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    losses, norms = [], []
    for t, share in enumerate((3 / 3, 2 / 3, 1 / 3), start=1):  # the linear schedule
        rate = share * config.learning_rate
        loss, gradients = gradients_row_by_row(model, dataset, config, step=t)
        losses.append(loss)
        norms.append(math.sqrt(sum(float(grad.square().sum()) for grad in gradients.values())))
        for name, weight in weights.items():
            grad = gradients[name] * config.max_grad_norm / (norms[-1] + 1e-6)
            m[name] = config.beta1 * m[name] + (1 - config.beta1) * grad
            v[name] = config.beta2 * v[name] + (1 - config.beta2) * grad**2
            root = (v[name] / (1 - config.beta2**t)).sqrt()
            update = m[name] / (1 - config.beta1**t) / (root + config.eps)
            decayed = weight.data * (1 - rate * config.weight_decay)
            weight.data = decayed - rate * update
    return losses, norms, {name: weight.detach() for name, weight in weights.items()}


def gradients_row_by_row(
    model: LlamaForCausalLM, dataset: TokenDataset, config: TrainConfig, *, step: int
) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of a step and its gradients, from unpadded rows one by one."""
    (batch,) = step_microbatches(dataset, padded(config), step=step)
    losses = []
    for i in batch.row_indices:
        ids, labels = (torch.from_numpy(values) for values in dataset.row(i))
        chances = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        losses += [-chances[t - 1, ids[t]] for t in range(1, len(ids)) if labels[t] != -100]
    loss = torch.stack(losses).mean()
    names, params = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, params)
    return float(loss.detach()), dict(zip(names, gradients, strict=True))


def test_result_does_not_depend_on_the_microbatch_split(model_dir: Path, dataset_dir: Path) -> None:
    whole = train_reference(model_dir, dataset_dir, config_for(model_dir, dataset_dir))
    split = train_reference(
        model_dir, dataset_dir, config_for(model_dir, dataset_dir, microbatch_rows=3)
    )
    assert split.losses == pytest.approx(whole.losses, rel=1e-5)
    # Adam's division by a root near zero lifts rounding noise: compare with what the steps moved.
    moved = relative_differences(read_checkpoint(model_dir), whole.state)
    apart = relative_differences(split.state, whole.state)
    assert all(apart[name] < 0.01 * moved[name] for name in moved)


def test_moments_are_those_of_the_clipped_gradient(model_dir: Path, dataset_dir: Path) -> None:
    config = config_for(model_dir, dataset_dir, max_steps=1, max_grad_norm=0.05)
    run = train_reference(model_dir, dataset_dir, config)
    norm = math.sqrt(sum(float(values.square().sum()) for values in run.exp_avg.values()))
    assert norm == pytest.approx((1 - config.beta1) * config.max_grad_norm, rel=1e-4)
    squares = sum(float(values.sum()) for values in run.exp_avg_sq.values())
    assert squares == pytest.approx((1 - config.beta2) * config.max_grad_norm**2, rel=1e-4)


def test_pad_token_within_a_row_is_trained_like_any_other(tmp_path: Path) -> None:
    model_dir = make_tiny_llama(tmp_path / "model", tied=False, seed=1, layers=1)
    pad = load_model(model_dir).config.pad_token_id
    dataset_dir = write_dataset(tmp_path / "rows", first_token=pad)
    run = train_reference(model_dir, dataset_dir, config_for(model_dir, dataset_dir, max_steps=1))
    name = "model.embed_tokens.weight"
    assert not torch.equal(run.state[name][pad], read_checkpoint(model_dir)[name][pad])


def test_clip_none_leaves_the_gradient_whole(model_dir: Path, dataset_dir: Path) -> None:
    config = config_for(model_dir, dataset_dir, max_steps=1, clip_mode="none")
    run = train_reference(model_dir, dataset_dir, config)
    assert run.grad_norms[0] > config.max_grad_norm, "it would be clipped"
    norm = math.sqrt(sum(float(values.square().sum()) for values in run.exp_avg.values()))
    assert norm == pytest.approx((1 - config.beta1) * run.grad_norms[0], rel=1e-4)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup_ratio", [0.0, 0.15, 1.0])
def test_product_and_reference_agree_on_the_rate_of_every_step(
    schedule: Any, warmup_ratio: float
) -> None:
    config = TrainConfig(model="m", dataset="d", lr_schedule=schedule, warmup_ratio=warmup_ratio)
    for total in (1, 2, 20, 33):
        for step in range(1, total + 1):
            wanted = learning_rate(step, total, config)
            assert rate_at(step, total_steps=total, config=config) == pytest.approx(wanted)


def test_evaluation_is_the_mean_over_all_trained_tokens(model_dir: Path, dataset_dir: Path) -> None:
    model = load_model(model_dir)
    model.model.norm.weight.data.zero_()  # every token is now equally likely
    loss = evaluate(model, TokenDataset.open(dataset_dir), microbatch_rows=3)
    assert loss == pytest.approx(math.log(VOCAB_SIZE), rel=1e-5)


def test_evaluation_losses_fall_and_carry_their_step(model_dir: Path, dataset_dir: Path) -> None:
    config = config_for(
        model_dir, dataset_dir, max_steps=5, lr_schedule="constant", eval_every_steps=2
    )
    run = train_reference(model_dir, dataset_dir, config, eval_dataset_dir=dataset_dir)
    assert list(run.eval_losses) == [0, 2, 4, 5]
    assert run.eval_losses[5] < run.eval_losses[2] < run.eval_losses[0]


def test_step_without_a_finite_gradient_changes_nothing(tmp_path: Path, dataset_dir: Path) -> None:
    model_dir = make_tiny_llama(tmp_path / "model", tied=False, seed=1, layers=1)
    poisoned = load_model(model_dir)
    poisoned.lm_head.weight.data[0, 0] = math.inf
    poisoned.save_pretrained(model_dir)
    run = train_reference(model_dir, dataset_dir, config_for(model_dir, dataset_dir, max_steps=1))
    assert not math.isfinite(run.grad_norms[0])
    before = read_checkpoint(model_dir)
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.state.items())


def test_settings_without_a_counterpart_are_refused(model_dir: Path, dataset_dir: Path) -> None:
    config = config_for(model_dir, dataset_dir)
    for changed in (
        replace(config, clip_mode="lagged"),
        replace(config, compute_dtype="bfloat16"),
    ):
        with pytest.raises(ValueError, match="the reference"):
            train_reference(model_dir, dataset_dir, changed)


def test_difference_of_other_tensors_is_refused() -> None:
    ones = torch.ones(3)
    with pytest.raises(AssertionError, match="b"):
        relative_differences({"a": ones}, {"a": ones, "b": ones})
    assert relative_differences({"a": 1.5 * ones}, {"a": ones}) == {"a": pytest.approx(0.5)}
