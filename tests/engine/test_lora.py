"""Adapters on a frozen base: peft's numbers, not a byte of the base written, exports that load."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.real_model import decoded_copy
from datasets import write_dataset
from headrace.engine import Box, SettingsChanged, TrainConfig, make_plan, shape_spec
from headrace.engine.methods import method_spec
from headrace.engine.model import ModelSpec, RecordLayout
from headrace.engine.report import StopReason
from headrace.engine.source import read_model_spec
from headrace.engine.state_record import state_record
from reference import first_adapters, relative_differences, train_reference
from runs import Run, assert_same_state, read_params
from tiny_families import CASES, write_family

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers

MIXTURES = ("mixtral", "qwen3_moe")
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
NEW = (
    "method",
    "freeze",
    "lora_rank",
    "lora_alpha",
    "lora_rslora",
    "lora_targets",
    "frozen_format",
)  # in the numerics key since there are adapters
LENGTHS = [24, 9, 17, 5, 30]
LORA: dict[str, Any] = {
    "method": "lora", "lora_rank": 4, "lora_alpha": 8.0,
    "max_steps": 3, "batch_rows": 5, "microbatch_rows": 2, "learning_rate": 1e-2,
}  # fmt: skip


def make_run(folder: Path, case: str = "llama", *, dtype: str = "float32", **settings: Any) -> Run:
    """A run in a folder; runs that share the folder's parent share model and data."""
    shared = folder.parent
    if not (shared / "model").exists():
        write_family(shared / "model", case, dtype=dtype)
        write_dataset(shared / "data", LENGTHS, vocab=384)
    return Run(folder, shared / "model", shared / "data", **{**LORA, **settings})


def payload_bytes(record: RecordLayout) -> int:
    return state_record(record, "exact").payload_bytes


def adapted(run: Run) -> ModelSpec:
    return method_spec(read_model_spec(run.config.model), run.config)


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        *((case, {}) for case in CASES if case not in ("mistral", "phi3", "qwen2", *MIXTURES)),
        *((case, {"lora_targets": ATTENTION}) for case in MIXTURES),
        *((case, {"packing": "off"}) for case in ("llama", "gemma3_text", "phi3-window")),
        ("qwen2", {"lora_rslora": True, "lora_targets": ("q_proj", "down_proj")}),
        ("phi3", {"lora_targets": (r".*layers\.[12]\.self_attn\.qkv_proj",)}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "all-linear",
)
def test_loss_and_every_gradient_are_those_of_peft(
    tmp_path: Path, case: str, settings: dict[str, Any]
) -> None:
    """The third step, since B begins at zero and A has no gradient in the first; and a large eps,
    since AdamW turns the noise of a small gradient into a step of full length."""
    run = make_run(tmp_path / "run", case, beta1=0.0, eps=1e-3, clip_mode="none", **settings)
    run.go()
    expected = train_reference(Path(run.config.model), Path(run.config.dataset), run.config)
    assert [m["loss"] for m in run.metrics()] == pytest.approx(expected.losses, abs=1e-5)
    gradients = read_params(run.config, "exp_avg")
    differences = relative_differences(gradients, expected.exp_avg)
    assert max(differences.values()) < 1e-5, differences


def test_twenty_clipped_steps_are_those_of_peft_and_adamw(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", max_steps=20, max_grad_norm=0.05, weight_decay=0.1, warmup_ratio=0.1
    )
    result = run.go()
    expected = train_reference(Path(run.config.model), Path(run.config.dataset), run.config)
    steps = run.metrics()
    assert [m["loss"] for m in steps] == pytest.approx(expected.losses, abs=1e-5)
    assert max(m["clip_factor"] for m in steps) < 1 and steps[-1]["loss"] < steps[0]["loss"] - 0.01
    assert result.export_dir is not None
    got = exported(Path(result.export_dir))
    differences = relative_differences(got, expected.state)
    assert max(differences.values()) < 1e-5, differences


def exported(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    tensors = load_file(folder / "adapter_model.safetensors")
    return {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    "settings",
    [
        {"state_tier": "host"},
        {"state_tier": "device"},
        {"num_slots": 1, "clip_way": "speculative"},
        {"num_slots": 5, "recompute": "none"},
        {"commit_every_steps": 2, "clip_way": "deferred"},
    ],
    ids=lambda settings: "-".join(f"{k}={v}" for k, v in settings.items()),
)
def test_where_the_base_lives_never_changes_a_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    plain = make_run(tmp_path / "plain", "gemma3_text", recompute="all", max_grad_norm=0.05)
    other = make_run(tmp_path / "other", "gemma3_text", max_grad_norm=0.05, **settings)
    plain.go()
    other.go()
    assert_same_state(other.state(), plain.state())


def test_a_run_paused_at_every_step_ends_with_the_same_bits(tmp_path: Path) -> None:
    plain, paused = make_run(tmp_path / "plain"), make_run(tmp_path / "paused")
    plain.go()
    outcomes = []
    for _ in range(5):
        polls: Any = iter([None, "pause"])

        def poll(polls: Any = polls) -> StopReason | None:
            return next(polls)

        outcomes.append(paused.go(poll=poll).outcome)
        if outcomes[-1] == "succeeded":
            break
    assert outcomes[0] == "paused" and outcomes[-1] == "succeeded"
    assert_same_state(paused.state(), plain.state())


def test_other_adapters_are_no_continuation_and_a_run_before_there_were_any_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "run").go(poll=lambda: "pause")
    with pytest.raises(SettingsChanged, match="lora_alpha was 8.0, now 4.0"):
        make_run(tmp_path / "run", lora_alpha=4.0).go()
    full: dict[str, Any] = {"method": "full", "lora_rank": 16, "lora_alpha": 32.0, "packing": "off"}
    old = make_run(tmp_path / "old", **full)
    known = {name: value for name, value in old.config.numerics_key.items() if name not in NEW}
    with monkeypatch.context() as patch:
        patch.setattr(TrainConfig, "numerics_key", known)
        assert old.go(poll=lambda: "pause").outcome == "paused"
    assert make_run(tmp_path / "old", **full).go().outcome == "succeeded"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_reads_the_base_and_writes_nothing_of_it(tmp_path: Path, dtype: str) -> None:
    """A step reads each frozen layer twice and each table once; a commit writes the adapters."""
    run = make_run(tmp_path / "run", dtype=dtype, recompute="all", num_slots=1)
    run.go()
    spec = adapted(run)
    base = {record.name: state_record(record, "exact") for record in spec.records if record.base}
    per_element = 4 if dtype == "float32" else 2  # bfloat16 weights have no lower half
    assert all(
        record.payload_bytes == per_element * spec.records[i].num_elements
        for i, record in enumerate(base.values())
    )
    layers = sum(base[record.name].payload_bytes for record in spec.of_kind("layer"))
    once = sum(record.payload_bytes for record in base.values())
    adapters = sum(payload_bytes(record) for record in spec.trained)
    for step in run.metrics():
        assert step["links"]["nvme_read"]["payload_bytes"] == once + layers
        assert step["links"]["nvme_write"]["payload_bytes"] == adapters
    (plan,) = [event.data for event in run.events if event.type == "plan"]
    assert plan["link_bytes"]["serial"]["nvme_read"] == once + layers
    assert plan["link_bytes"]["serial"]["nvme_write"] == 0
    assert plan["device_bytes"]["table_grad"] == 0


@pytest.mark.parametrize("base", ["nf4", "int8"])
@pytest.mark.parametrize("case", ["llama", "qwen3", "gemma2", *MIXTURES])
def test_on_a_coded_base_the_numbers_are_those_of_peft_on_what_the_codes_say(
    tmp_path: Path, case: str, base: Any
) -> None:
    """The reference's matrices become what the codes say, and its other weights bfloat16; a
    router is one of the others."""
    run = make_run(
        tmp_path / "run", case, beta1=0.0, eps=1e-3, clip_mode="none", frozen_format=base,
        lora_export="merged",
    )  # fmt: skip
    run.go()
    rounded = decoded_copy(Path(run.config.model), tmp_path / "decoded", base)
    expected = train_reference(rounded, Path(run.config.dataset), run.config)
    assert [m["loss"] for m in run.metrics()] == pytest.approx(expected.losses, abs=1e-5)
    differences = relative_differences(read_params(run.config, "exp_avg"), expected.exp_avg)
    assert max(differences.values()) < 1e-5, differences


@pytest.mark.parametrize("base", ["nf4", "int8"])
def test_a_coded_base_has_the_same_bits_wherever_it_lives(tmp_path: Path, base: str) -> None:
    plain = make_run(tmp_path / "plain", frozen_format=base, recompute="all")
    kept = make_run(
        tmp_path / "kept", frozen_format=base, recompute="none", state_tier="device", num_slots=5
    )
    plain.go()
    kept.go()
    assert_same_state(kept.state(), plain.state())


@pytest.mark.parametrize("base", ["auto", "nf4"])
def test_adapters_train_in_bfloat16_as_they_do_in_float32(tmp_path: Path, base: str) -> None:
    common: dict[str, Any] = {
        "frozen_format": base,
        "lora_targets": ("q_proj", "up_proj"),
        "max_steps": 5,
    }
    exact = make_run(tmp_path / "exact", **common)
    rounded = make_run(tmp_path / "rounded", compute_dtype="bfloat16", **common)
    exact.go()
    rounded.go()
    wanted = [m["loss"] for m in exact.metrics()]
    assert [m["loss"] for m in rounded.metrics()] == pytest.approx(wanted, abs=0.02)


def test_a_coded_base_takes_and_moves_few_bits(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", frozen_format="nf4", recompute="all", num_slots=1, max_steps=1)
    run.go()
    layers = [payload_bytes(record) for record in adapted(run).of_kind("layer")]
    for size, record in zip(layers, adapted(run).of_kind("layer"), strict=True):
        matrices = sum(param.num_elements for param in record.params if len(param.shape) == 2)
        assert size == matrices * 4.5 / 8 + 2 * (record.num_elements - matrices)
    (step,) = run.metrics()
    tables = sum(
        payload_bytes(record)
        for record in adapted(run).records
        if record.base and record.kind != "layer"
    )
    assert step["links"]["nvme_read"]["payload_bytes"] == 2 * sum(layers) + tables


@pytest.mark.parametrize(("base", "host_gib"), [("nf4", 48), ("auto", 100)])
def test_adapters_of_a_70b_model_fit_24_gib_of_device_memory(base: Any, host_gib: int) -> None:
    """8192 tokens a step, and nothing of the base is written."""
    gib = 2**30
    config = TrainConfig(
        model="m", dataset="d", device="cuda", compute_dtype="bfloat16", method="lora",
        frozen_format=base, batch_rows=4, microbatch_rows=1, loss_chunk_tokens=1024,
    )  # fmt: skip
    spec = method_spec(shape_spec("llama3-70b"), config)
    box = Box(device="cuda", device_bytes=24 * gib, host_bytes=host_gib * gib,
              volumes={"/drive": 2**42})  # fmt: skip
    plan = make_plan(spec, config, longest_row_tokens=2048, box=box)
    assert plan.total_device_bytes <= 24 * gib and plan.total_host_bytes <= host_gib * gib
    assert plan.frozen_bytes == pytest.approx((0.58 if base == "nf4" else 2) * 70.5e9, rel=0.05)
    assert plan.state_bytes["exact"] == pytest.approx(12 * spec.num_trained_params, rel=0.01)
    assert plan.link_bytes["serial"]["nvme_write"] == 0
    assert ("nvme" in plan.tiers) == (base == "auto")


def test_peft_loads_the_adapters_with_the_same_logits(tmp_path: Path) -> None:
    from peft import PeftModel

    run = make_run(tmp_path / "run", "qwen3", lora_rslora=True)
    result = run.go()
    expected = train_reference(Path(run.config.model), Path(run.config.dataset), run.config)
    assert result.export_dir is not None
    folder = Path(result.export_dir)
    got = load_tuned(run, folder)
    wanted = load_tuned(run, None)
    for name, param in wanted.named_parameters():
        if "lora_" in name:
            short = name.removeprefix("base_model.model.").replace(".default.", ".")
            param.data.copy_(expected.state[short])
    ids = torch.arange(2 * 24).view(2, 24)
    torch.testing.assert_close(got(ids).logits, wanted(ids).logits, rtol=1e-4, atol=1e-4)
    assert isinstance(got, PeftModel)
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "model" and settings["use_rslora"] is True
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<|im_end|>"


def load_tuned(run: Run, adapters: Path | None) -> Any:
    from peft import PeftModel

    from reference import choose_trained

    base = AutoModelForCausalLM.from_pretrained(run.config.model, dtype=torch.float32)
    if adapters is None:
        return choose_trained(base, run.config).eval()
    return PeftModel.from_pretrained(base, adapters).eval()


@pytest.mark.parametrize("case", ["llama", "phi3"])
def test_the_merged_model_has_the_logits_of_base_and_adapters(tmp_path: Path, case: str) -> None:
    apart = make_run(tmp_path / "apart", case)
    merged = make_run(tmp_path / "merged", case, lora_export="merged")
    adapters, whole = apart.go().export_dir, merged.go().export_dir
    assert adapters is not None and whole is not None
    model = AutoModelForCausalLM.from_pretrained(whole)
    ids = torch.arange(2 * 24).view(2, 24)
    wanted = load_tuned(apart, Path(adapters))(ids).logits
    torch.testing.assert_close(model(ids).logits, wanted, rtol=1e-4, atol=1e-4)
    plain = AutoModelForCausalLM.from_pretrained(apart.config.model)(ids).logits
    assert (wanted - plain).abs().max() > 0.01, "the adapters do nothing: this would prove nothing"


def test_adapters_begin_alike_for_a_seed_and_with_the_model_as_it_is(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", max_steps=1)
    one, other = (first_adapters(run.config) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    for name, values in one.items():
        if name.endswith("lora_B.weight"):
            assert not values.any()
        else:
            bound = values.shape[1] ** -0.5
            assert bound * 0.9 < values.abs().max() <= bound and abs(values.mean()) < bound / 4
