"""Adapters on a mixture's experts: the numbers of plain autograd, exports that peft loads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from datasets import write_dataset
from headrace.engine import BadSetting, TrainConfig, read_model_spec, shape_spec
from headrace.engine.methods import method_spec
from reference import relative_differences, train_reference
from runs import Run, assert_same_state, read_params
from tiny import write_model
from tiny_families import CASES, SHARED, write_family

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers

LENGTHS = [24, 9, 17, 5, 30]
LORA: dict[str, Any] = {
    "method": "lora", "lora_rank": 4, "lora_alpha": 8.0,
    "max_steps": 3, "batch_rows": 5, "microbatch_rows": 2, "learning_rate": 1e-2,
}  # fmt: skip
EXPERTS_ALONE = ("gate_proj", "up_proj", "down_proj")


def write_mixture(folder: Path, case: str) -> Path:
    """A tiny mixture with experts in every layer."""
    values = {**SHARED, **CASES[case]} | ({"mlp_only_layers": []} if case == "qwen3_moe" else {})
    return write_model(folder, CONFIG_MAPPING[case](**values), seed=7)


def make_run(folder: Path, case: str, **settings: Any) -> Run:
    """A run in a folder; runs that share the folder's parent share model and data."""
    shared = folder.parent
    if not (shared / "model").exists():
        write_mixture(shared / "model", case)
        write_dataset(shared / "data", LENGTHS, vocab=384)
    return Run(folder, shared / "model", shared / "data", **{**LORA, **settings})


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("mixtral", {}),
        ("mixtral", {"packing": "off", "lora_targets": ("w2",), "lora_rslora": True}),
        ("mixtral", {"router_aux_loss_coef": 0.5}),
        ("qwen3_moe", {"lora_targets": EXPERTS_ALONE}),
    ],
    ids=["all-linear", "w2-padded", "balanced", "experts-alone"],
)
def test_loss_and_every_gradient_are_those_of_plain_autograd(
    tmp_path: Path, case: str, settings: dict[str, Any]
) -> None:
    """The third step, since A has no gradient in the first, while B is zero."""
    run = make_run(tmp_path / "run", case, beta1=0.0, eps=1e-3, clip_mode="none", **settings)
    run.go()
    expected = train_reference(Path(run.config.model), Path(run.config.dataset), run.config)
    assert [m["loss"] for m in run.metrics()] == pytest.approx(expected.losses, abs=1e-5)
    gradients = read_params(run.config, "exp_avg")
    assert any(".experts." in name and values.any() for name, values in gradients.items())
    differences = relative_differences(gradients, expected.exp_avg)
    assert max(differences.values()) < 1e-5, differences


# peft looks for its own patterns among modules, and finds those of stacks among parameters.
@pytest.mark.filterwarnings("ignore:The following .* keys did not match:RuntimeWarning")
@pytest.mark.parametrize("case", ["mixtral", "qwen3_moe"])
def test_peft_and_the_merged_model_have_the_same_logits(tmp_path: Path, case: str) -> None:
    """peft stacks the experts' adapters; the other export adds them to the experts' weights."""
    from peft import PeftModel

    found = []
    for export in ("adapter", "merged"):
        run = make_run(tmp_path / export, case, lora_export=export)
        export_dir = run.go().export_dir
        assert export_dir is not None
        found.append(Path(export_dir))
    adapter, merged = found
    base = AutoModelForCausalLM.from_pretrained(run.config.model, dtype=torch.float32)
    ids = torch.arange(2 * 24).view(2, 24)
    plain = base(ids).logits.detach()
    got = PeftModel.from_pretrained(base, adapter).eval()(ids).logits
    wanted = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)(ids).logits
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert (plain - wanted).abs().max() > 0.1


@pytest.mark.parametrize("base", ["auto", "nf4"])
def test_kept_or_recomputed_they_end_with_the_same_bits(tmp_path: Path, base: str) -> None:
    common: dict[str, Any] = {"frozen_format": base, "max_grad_norm": 0.05}
    plain = make_run(tmp_path / "plain", "qwen3_moe", recompute="all", **common)
    kept = make_run(
        tmp_path / "kept", "qwen3_moe", recompute="none", state_tier="device", num_slots=5, **common
    )
    plain.go()
    kept.go()
    assert_same_state(kept.state(), plain.state())


@pytest.mark.parametrize(
    ("case", "targets", "why"),
    [
        ("mixtral", ("w1", "w2"), "w1 and w3 of an expert are one tensor"),
        ("mixtral", (r".*experts\.[01]\.w[123]",), "so is every projection of the same name"),
        ("mixtral", (r".*layers\.1\..*w[123]",), "so is every projection of the same name"),
        ("qwen3_moe", ("all-linear",), "would be taken for experts"),
    ],
)
def test_what_peft_cannot_load_is_refused_unless_it_is_merged(
    tmp_path: Path, case: str, targets: tuple[str, ...], why: str
) -> None:
    spec = read_model_spec(write_family(tmp_path, case))
    settings: dict[str, Any] = {"model": "m", "dataset": "d", "method": "lora"}
    with pytest.raises(BadSetting, match=why):
        method_spec(spec, TrainConfig(**settings, lora_targets=targets))
    merged = TrainConfig(**settings, lora_targets=targets, lora_export="merged")
    assert method_spec(spec, merged).of_kind("beside")


def test_an_expression_that_chooses_whole_experts_is_exported_by_their_names(
    tmp_path: Path,
) -> None:
    run = make_run(
        tmp_path / "run", "mixtral", max_steps=1, lora_targets=(r".*\.experts\.\d+\.w[123]",)
    )
    export_dir = run.go().export_dir
    assert export_dir is not None
    said = (Path(export_dir) / "adapter_config.json").read_text()
    assert all(f'"{name}"' in said for name in ("w1", "w2", "w3")) and "experts" not in said


def test_adapters_of_all_experts_of_a_real_mixture_are_many() -> None:
    spec = shape_spec("qwen3-30b-a3b")
    settings = TrainConfig(model="m", dataset="d", method="lora", lora_rank=16)
    attention = ("q_proj", "k_proj", "v_proj", "o_proj")
    alone = method_spec(spec, replace(settings, lora_targets=attention))
    counts = [one.num_trained_params / 1e6 for one in (method_spec(spec, settings), alone)]
    assert [round(count) for count in counts] == [844, 13]
