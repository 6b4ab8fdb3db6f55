"""Law 2: out of core in exact mode is what plain PyTorch does with the whole model in memory."""

from pathlib import Path

import pytest
import torch

from datasets import write_dataset
from headrace.engine.gradients import Gradients
from reference import read_checkpoint, relative_differences, train_reference
from runs import Run, assert_same_state
from tiny import make_tiny_llama

LENGTHS = [9, 17, 5, 30, 12, 21, 8, 26, 14, 11, 23]


@pytest.mark.parametrize(
    "model",
    [
        {"tied": True},
        {"tied": False},
        {"tied": False, "bias": True},
        {
            "tied": True,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ],
    ids=["tied", "untied", "biases", "rope-scaling"],
)
def test_twenty_clipped_steps_agree_with_plain_pytorch(tmp_path: Path, model: dict) -> None:  # type: ignore[type-arg]
    """fp32 on the CPU, uneven microbatches, padding, a clip that bites: |Δloss| and, per tensor,
    ‖Δw‖ / ‖w‖ below 1e-5."""
    folder = make_tiny_llama(tmp_path / "model", seed=3, **model)
    dataset = write_dataset(tmp_path / "data", LENGTHS, vocab=384)
    evaluation = write_dataset(tmp_path / "eval", [7, 19, 13], vocab=384, seed=5)
    run = Run(
        tmp_path,
        folder,
        dataset,
        eval_dataset=str(evaluation),
        max_steps=20,
        batch_rows=5,
        microbatch_rows=2,
        weight_decay=0.1,
        warmup_ratio=0.1,
        max_grad_norm=0.5,
        export_dtype="float32",
    )
    result = run.go()
    expected = train_reference(folder, dataset, run.config, eval_dataset_dir=evaluation)
    steps = run.metrics()
    assert len(steps) == 20
    assert [m["loss"] for m in steps] == pytest.approx(expected.losses, abs=1e-5)
    assert [m["grad_norm"] for m in steps] == pytest.approx(expected.grad_norms, rel=1e-4)
    assert max(m["clip_factor"] for m in steps) < 1
    evals = [event.data["eval_loss"] for event in run.events if event.type == "eval"]
    assert evals == pytest.approx([expected.eval_losses[0], expected.eval_losses[20]], abs=1e-5)
    assert result.export_dir is not None
    weights = read_checkpoint(Path(result.export_dir))
    weights.pop("lm_head.weight", None) if model["tied"] else None
    differences = relative_differences(weights, expected.state)
    assert max(differences.values()) < 1e-5, differences
    moved = relative_differences(expected.state, dict(read_checkpoint(folder)))
    assert min(moved.values()) > 1e-5, "the reference hardly trained, so this would prove nothing"


def test_a_step_whose_gradient_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    """A huge weight makes every gradient NaN: one step is skipped, the second stops the job."""
    from safetensors.torch import load_file, save_file

    from headrace.engine import NotFinite

    folder = make_tiny_llama(tmp_path / "model", tied=True, seed=4)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = 3e38  # finite itself, its products are not
    save_file(tensors, path, metadata={"format": "pt"})
    dataset = write_dataset(tmp_path / "data", LENGTHS, vocab=384)
    for way in ("serial", "speculative"):
        run = Run(tmp_path / way, folder, dataset, clip_way=way, max_steps=5)
        with pytest.raises(NotFinite, match="rows of the data set"):
            run.go()
        assert [m["skipped"] for m in run.metrics()] == [True, True]
        warnings = [event for event in run.events if event.level == "warn"]
        assert len(warnings) == 1 and "not finite" in warnings[0].message
        state = run.state()
        assert not any(bool(t.any()) for name, t in state.items() if "exp_avg" in name)


def test_a_step_that_is_not_finite_leaves_no_trace_in_what_was_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third of five steps is skipped; whatever was read for the fourth meanwhile, and however
    updates wait, the bits are those of a run that commits every step."""
    steps = 0
    norm = Gradients.norm

    def norm_of_step(gradients: Gradients) -> torch.Tensor:
        nonlocal steps
        steps += 1
        found = norm(gradients)
        return found * float("nan") if steps == 3 else found

    monkeypatch.setattr(Gradients, "norm", norm_of_step)
    folder = make_tiny_llama(tmp_path / "model", tied=True, seed=4)
    dataset = write_dataset(tmp_path / "data", LENGTHS, vocab=384)
    runs = []
    for i, settings in enumerate(
        (
            {},
            {"commit_every_steps": 9, "clip_way": "serial"},
            {"commit_every_steps": 9, "clip_way": "deferred"},
            {"commit_every_steps": 9, "clip_way": "deferred", "num_slots": 16},
            {"commit_every_steps": 9, "clip_way": "speculative", "state_tier": "host"},
        )
    ):
        steps = 0
        runs.append(Run(tmp_path / f"{i}", folder, dataset, max_steps=5, **settings))
        runs[-1].go()
        assert [m["skipped"] for m in runs[-1].metrics()] == [False, False, True, False, False]
        assert_same_state(runs[-1].state(), runs[0].state())
