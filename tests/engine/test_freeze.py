"""Parts of a model that stay: the rest trains as plain PyTorch trains it, they keep every bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from datasets import write_dataset
from headrace.engine import read_model_spec
from headrace.engine.methods import method_spec
from reference import read_checkpoint, relative_differences, train_reference
from runs import Run, assert_same_state
from tiny import make_tiny_llama

LENGTHS = [9, 17, 5, 30, 12]
PATTERNS = [
    ("model.embed_tokens.*",),
    ("lm_head.*", "model.norm.*"),
    ("model.embed_tokens.*", "model.layers.0.*"),
    ("*.mlp.*",),
    ("model.layers.*", "model.embed_tokens.weight"),
    ("model.layers.1.*", "*.self_attn.*", "*norm*"),
]


def make_run(folder: Path, patterns: tuple[str, ...], *, tied: bool, **settings: Any) -> Run:
    model = folder.parent / "model"
    if not model.exists():
        make_tiny_llama(model, tied=tied, seed=5)
        write_dataset(folder.parent / "data", LENGTHS, vocab=384)
    return Run(
        folder, model, folder.parent / "data",
        **{"freeze": patterns, "batch_rows": 5, "microbatch_rows": 2, "max_grad_norm": 0.5,
           "weight_decay": 0.1, "export_dtype": "float32", **settings},
    )  # fmt: skip


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("patterns", PATTERNS, ids=" ".join)
def test_what_is_not_frozen_trains_as_it_would_in_plain_pytorch(
    tmp_path: Path, patterns: tuple[str, ...], tied: bool
) -> None:
    if tied and "lm_head.*" in patterns:
        patterns = patterns[1:]  # there is no such parameter
    run = make_run(tmp_path / "run", patterns, tied=tied)
    result = run.go()
    expected = train_reference(Path(run.config.model), Path(run.config.dataset), run.config)
    assert [m["loss"] for m in run.metrics()] == pytest.approx(expected.losses, abs=1e-5)
    assert [m["grad_norm"] for m in run.metrics()] == pytest.approx(expected.grad_norms, rel=1e-4)
    assert result.export_dir is not None
    got, before = read_checkpoint(Path(result.export_dir)), read_checkpoint(Path(run.config.model))
    assert got.keys() == before.keys()
    frozen = got.keys() - expected.state.keys()
    assert all(torch.equal(got[name], before[name]) for name in frozen)
    trained = {name: values for name, values in got.items() if name in expected.state}
    assert max(relative_differences(trained, expected.state).values()) < 1e-5
    assert not any(torch.equal(values, before[name]) for name, values in trained.items())


@pytest.mark.parametrize(
    "settings",
    [
        {"state_tier": "host", "recompute": "none"},
        {"clip_way": "speculative", "num_slots": 1},
        {"clip_way": "deferred", "commit_every_steps": 3},
    ],
    ids=lambda settings: "-".join(f"{k}={v}" for k, v in settings.items()),
)
def test_placement_never_changes_a_bit_of_what_is_trained(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    patterns = ("model.embed_tokens.*", "model.layers.0.*", "model.layers.1.mlp.*")
    plain = make_run(tmp_path / "plain", patterns, tied=False, clip_way="serial", recompute="all")
    other = make_run(tmp_path / "other", patterns, tied=False, **settings)
    plain.go()
    other.go()
    assert_same_state(other.state(), plain.state())


def test_backward_ends_where_nothing_below_is_trained(tmp_path: Path) -> None:
    patterns = ("model.embed_tokens.*", "model.layers.0.*", "model.layers.1.*")
    run = make_run(tmp_path / "run", patterns, tied=False, clip_way="serial", num_slots=1,
                   recompute="all")  # fmt: skip
    run.go()
    spec = method_spec(read_model_spec(run.config.model), run.config)
    assert spec.first_backward_layer == 2
    elements = {record.name: record.num_elements for record in spec.records}
    trained = sum(record.num_elements for record in spec.trained)
    once = 4 * (sum(elements.values()) + elements["layers.2"]) + 12 * trained
    for step in run.metrics():
        assert step["links"]["nvme_read"]["payload_bytes"] == once
