"""Direct preference optimization is what plain PyTorch computes, and keeps every law of a run."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from datasets import write_dataset, write_preferences
from forked import exit_status
from headrace.engine import DataProblem, StateLost, TrainConfig
from headrace.engine.data import TokenDataset
from headrace.engine.dpo import PreferenceSums, pair_loss
from headrace.engine.errors import NotFinite
from headrace.engine.report import RunEvent, StopReason
from reference import relative_differences
from reference_dpo import train_dpo
from runs import Run, assert_same_state, read_params
from tiny import make_tiny_llama
from tiny_families import write_family

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers

ANSWERS = [(9, 17), (30, 5), (12, 21), (8, 26), (14, 11), (6, 7), (19, 19)]
HELD_OUT = [(7, 12), (25, 9), (13, 13)]
DPO: dict[str, Any] = {"objective": "dpo", "batch_rows": 4, "microbatch_rows": 2, "max_steps": 5}
PACKED = {"microbatch_tokens": 50}
LORA = {"method": "lora", "lora_rank": 4, "lora_alpha": 8.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_tiny_llama(folder / "model", tied=False, seed=1, layers=2)


def preferences(folder: Path) -> Path:
    if not (folder / "rows").exists():
        write_preferences(folder / "rows", ANSWERS, vocab=384)
    return folder / "rows"


def make_run(folder: Path, model: Path, data: Path, **settings: Any) -> Run:
    return Run(folder, model, data, **{**DPO, **settings})


def passes(run: Run) -> int:
    """How often the run began to compute reference log-probabilities."""
    said = [event for event in run.events if event.message == "reference log-probabilities"]
    return sum(event.data["preferences"] == 0 for event in said)


CASES: dict[str, dict[str, Any]] = {
    "packed": PACKED,
    "padded": {"packing": "off"},
    "one microbatch each": {"microbatch_tokens": 1},
    "smoothed": {"dpo_label_smoothing": 0.2, "dpo_beta": 0.7},
    "freeze": {"freeze": ("*.mlp.*", "lm_head.weight")},
    "lora": LORA,
    "lora, padded": {**LORA, "packing": "off"},
}


@pytest.mark.parametrize("case", CASES)
def test_loss_rewards_and_every_gradient_are_those_of_plain_pytorch(
    model: Path, tmp_path: Path, case: str
) -> None:
    """The third step: at the first one policy and reference are one, and B of adapters is zero."""
    settings = {"max_steps": 3, "learning_rate": 1e-2, "beta1": 0.0, "eps": 1e-3}
    run = make_run(tmp_path / "run", model, preferences(tmp_path), clip_mode="none",
                   **{**settings, **CASES[case]})  # fmt: skip
    run.go()
    expected = train_dpo(run.config, 3)
    expected.steps[0].pop("reward_accuracy")  # nothing is gained yet, so rounding alone decides
    for step, wanted in zip(run.metrics(), expected.steps, strict=True):
        assert {name: step[name] for name in wanted} == pytest.approx(wanted, abs=1e-5)
    assert abs(expected.steps[-1]["reward_margin"]) > 0.01
    gradients = read_params(run.config, "exp_avg")
    differences = relative_differences(gradients, expected.exp_avg)
    assert max(differences.values()) < 1e-5, differences


@pytest.mark.parametrize("family", ["gemma2", "qwen3_moe"])
def test_capped_logits_and_experts_learn_preferences_as_in_plain_pytorch(
    tmp_path: Path, family: str
) -> None:
    write_family(tmp_path / "model", family)
    run = make_run(tmp_path / "run", tmp_path / "model", preferences(tmp_path), max_steps=1,
                   clip_mode="none", beta1=0.0)  # fmt: skip
    run.go()
    expected = train_dpo(run.config, 1)
    assert run.metrics()[0]["loss"] == pytest.approx(expected.steps[0]["loss"], abs=1e-5)
    differences = relative_differences(read_params(run.config, "exp_avg"), expected.exp_avg)
    assert max(differences.values()) < 1e-5, differences


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_five_clipped_steps_and_evaluations_are_those_of_plain_pytorch(
    tmp_path: Path, tied: bool
) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=tied, seed=1, layers=2)
    held_out = write_preferences(tmp_path / "held-out", HELD_OUT, vocab=384, seed=5)
    run = make_run(
        tmp_path / "run", model, preferences(tmp_path), eval_dataset=str(held_out),
        learning_rate=1e-3, max_grad_norm=0.5, weight_decay=0.1, warmup_ratio=0.2, eps=1e-4,
    )  # fmt: skip
    run.go()
    expected = train_dpo(run.config, 5, eval_dataset_dir=held_out)
    assert any(step["clip_factor"] < 1 for step in run.metrics())
    losses = [step["loss"] for step in run.metrics()]
    assert losses == pytest.approx([step["loss"] for step in expected.steps], abs=1e-5)
    evals = [event.data for event in run.events if event.type == "eval"]
    for found, wanted in zip(evals, (expected.first_eval, expected.last_eval), strict=True):
        assert wanted is not None
        for name in ("loss", "reward_chosen", "reward_rejected", "reward_margin"):
            assert found[f"eval_{name}"] == pytest.approx(wanted[name], abs=1e-5), name
    differences = relative_differences(read_params(run.config, "exp_avg"), expected.exp_avg)
    assert max(differences.values()) < 1e-5, differences


def test_before_training_nothing_is_preferred(model: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model, preferences(tmp_path), max_steps=1, rehearsal="on")
    run.go()
    assert any("rehearsal" in event.data for event in run.events)
    (step,) = run.metrics()
    assert step["loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert step["reward_margin"] == pytest.approx(0, abs=1e-6)


def test_the_weights_of_a_preference_are_the_derivatives_of_its_loss() -> None:
    config = TrainConfig(model="", dataset="", dpo_beta=0.3, dpo_label_smoothing=0.1)
    generator = torch.Generator().manual_seed(3)
    log_probs, reference = (
        10 * torch.randn(6, 2, dtype=torch.float64, generator=generator) for _ in range(2)
    )
    log_probs.requires_grad_()
    rewards = 0.3 * (log_probs - reference)
    margin = rewards[:, 0] - rewards[:, 1]
    loss = (-0.9 * logsigmoid(margin) - 0.1 * logsigmoid(-margin)).sum()
    (wanted,) = torch.autograd.grad(loss, log_probs)
    sums = PreferenceSums.zero(torch.device("cpu"))
    found = pair_loss(log_probs.detach(), reference, config, sums)
    torch.testing.assert_close(-found, wanted)
    totals = sums.totals()
    assert totals.loss == pytest.approx(float(loss.detach()) / 6)
    assert totals.rewards["reward_accuracy"] == float((margin > 0).double().mean())


@pytest.fixture(scope="module", params=[{**PACKED}, {"packing": "off"}], ids=["packed", "padded"])
def plain(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, dict[str, Any]]:
    """A plain run: every update after the norm, every layer computed twice."""
    settings = {"clip_way": "serial", "recompute": "all", "max_grad_norm": 0.05, **request.param}
    folder = tmp_path_factory.mktemp("plain")
    run = make_run(folder / "run", model, preferences(folder), **settings)
    run.go()
    return run, settings


@pytest.mark.parametrize(
    "other",
    [
        {"state_tier": "host", "num_slots": 1},
        {"state_tier": "device", "recompute": "none", "commit_every_steps": 3},
        {"clip_way": "speculative", "num_slots": 5, "activation_tier": "host"},
        {"clip_way": "deferred", "commit_every_steps": 4, "recompute": "none"},
        {"strategy": "zero_infinity", "clip_way": "auto", "recompute": "auto"},
    ],
    ids=lambda settings: "-".join(f"{k}={v}" for k, v in settings.items()),
)
def test_placement_never_changes_a_bit(
    plain: tuple[Run, dict[str, Any]], tmp_path: Path, other: dict[str, Any]
) -> None:
    whole, settings = plain
    data = write_preferences(tmp_path / "rows", ANSWERS, vocab=384)
    run = make_run(tmp_path / "run", Path(whole.config.model), data, **{**settings, **other})
    run.go()
    assert [m["loss"] for m in run.metrics()] == [m["loss"] for m in whole.metrics()]
    assert_same_state(run.state(), whole.state())


def test_quantised_bases_learn_preferences(model: Path, tmp_path: Path) -> None:
    settings = {**LORA, "frozen_format": "nf4", "learning_rate": 1e-2, "max_steps": 12}
    run = make_run(tmp_path / "run", model, preferences(tmp_path), dpo_beta=0.5, **settings)
    run.go()
    steps = run.metrics()
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.1
    assert steps[-1]["reward_accuracy"] == 1.0


def pause_after(polls: int) -> Callable[[], StopReason | None]:
    left = iter(range(polls))
    return lambda: None if next(left, None) is not None else "pause"


def test_a_run_paused_at_every_poll_ends_with_the_same_bits_and_one_pass(
    plain: tuple[Run, dict[str, Any]], tmp_path: Path
) -> None:
    whole, settings = plain
    data = write_preferences(tmp_path / "rows", ANSWERS, vocab=384)
    run = make_run(tmp_path / "run", Path(whole.config.model), data, **settings)
    assert run.go(poll=pause_after(0)).outcome == "paused"
    assert list(data.glob("reference-*.npy")) and passes(run) == 1
    for _ in range(8):
        if run.go(poll=pause_after(2)).outcome == "succeeded":
            break
    assert_same_state(run.state(), whole.state())
    assert passes(run) == 2  # the first was stopped before it had begun


def killed(run: Run, *, message: str) -> int:
    """Go on in a process of its own that is killed when it says so."""
    return exit_status("runs:go_on_until", run.config.to_dict(), str(run.folder), message)


@pytest.mark.parametrize("plain", [PACKED], indirect=True)
def test_a_run_killed_and_killed_again_ends_with_the_same_bits(
    plain: tuple[Run, dict[str, Any]], tmp_path: Path
) -> None:
    """Once when the reference is known and no step was made, then in the middle."""
    whole, settings = plain
    model, data = Path(whole.config.model), write_preferences(tmp_path / "rows", ANSWERS, vocab=384)
    run = make_run(tmp_path / "run", model, data, **settings)
    assert killed(run, message="training") == -signal.SIGKILL
    assert killed(run, message="Step 3/5") == -signal.SIGKILL
    assert run.go().outcome == "succeeded"
    assert run.metrics()[0]["step"] == 3 and passes(run) == 0
    assert_same_state(run.state(), whole.state())


def test_the_reference_is_computed_once_for_all_runs_of_a_model(
    model: Path, tmp_path: Path
) -> None:
    data = preferences(tmp_path)
    first = make_run(tmp_path / "first", model, data)
    again = make_run(tmp_path / "again", model, data, learning_rate=1e-3, dpo_beta=0.5)
    for run in (first, again):
        run.go()
    assert (passes(first), passes(again)) == (1, 0)


def test_another_model_and_other_data_have_a_reference_of_their_own(
    model: Path, tmp_path: Path
) -> None:
    data = preferences(tmp_path)
    make_run(tmp_path / "first", model, data).go()
    other = make_tiny_llama(tmp_path / "other-model", tied=False, seed=2, layers=2)
    of_other_model = make_run(tmp_path / "second", other, data)
    of_other_model.go()
    tokens = np.fromfile(data / "tokens.bin", dtype=np.uint32)
    tokens[5] = (tokens[5] + 1) % 384
    tokens.tofile(data / "tokens.bin")
    of_other_data = make_run(tmp_path / "third", model, data)
    of_other_data.go()
    assert passes(of_other_model) == passes(of_other_data) == 1
    assert len(list(data.glob("reference-*.npy"))) == 3


def test_a_short_run_computes_the_reference_of_its_own_rows(model: Path, tmp_path: Path) -> None:
    data = write_preferences(tmp_path / "rows", ANSWERS * 6, vocab=384)
    run = make_run(tmp_path / "run", model, data, max_steps=1, batch_rows=2)
    run.go()
    (file,) = data.glob("reference-*.npy")
    known = np.isfinite(np.load(file)).all(axis=1)
    assert 2 <= known.sum() <= 4  # its rows, with those that lie beside them
    assert known[: TokenDataset.open(data).num_rows].sum() < 42


def test_a_reference_that_is_lost_is_not_made_of_trained_weights(
    model: Path, tmp_path: Path
) -> None:
    data = preferences(tmp_path)
    run = make_run(tmp_path / "run", model, data)
    run.go(poll=pause_after(3))
    for file in data.glob("reference-*.npy"):
        file.unlink()
    with pytest.raises(StateLost, match="start a new job"):
        run.go()


def test_a_model_without_finite_probabilities_is_named_before_training(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = make_tiny_llama(tmp_path / "model", tied=False, seed=1, layers=1)
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"].fill_(1e38)
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NotFinite, match="no finite probability"):
        make_run(tmp_path / "run", model, preferences(tmp_path)).go()


def test_preferences_and_plain_rows_are_not_taken_for_each_other(
    model: Path, tmp_path: Path
) -> None:
    rows = write_dataset(tmp_path / "plain", [9, 17, 5], vocab=384)
    with pytest.raises(DataProblem, match="dpo trains on preferences"):
        make_run(tmp_path / "run", model, rows).go()
    with pytest.raises(DataProblem, match="supervised trains on rows of one answer"):
        make_run(tmp_path / "run", model, preferences(tmp_path), objective="supervised").go()


def test_a_progress_event_tells_how_many_are_known(model: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", model, preferences(tmp_path))
    run.go()
    told: list[RunEvent] = [e for e in run.events if e.message == "reference log-probabilities"]
    assert told[-1].data == {"preferences": 7, "total_preferences": 7}
