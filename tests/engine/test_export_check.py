"""Every export is read back from its files, and fails where it does not hold what was trained."""

import json
import weakref
from hashlib import sha256
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from datasets import write_dataset
from headrace.engine import ExportMismatch, ModelError, RecordLayout, finish, streamed
from headrace.engine import run as run_module
from headrace.engine.data import TokenDataset
from headrace.engine.export_check import REPORT
from headrace.engine.export_rounding import rounded
from headrace.engine.finish import prompts_of
from headrace.engine.store_export import check_store
from headrace.engine.workspace import Workspace
from runs import Run
from tiny_families import CASES, write_family
from tiny_gguf_families import write_case

LENGTHS = [24, 9, 17, 5, 40]
SMALL: dict[str, Any] = {
    "max_steps": 2, "batch_rows": 3, "microbatch_rows": 2, "learning_rate": 1e-2,
}  # fmt: skip
LORA = {**SMALL, "method": "lora", "lora_rank": 4}


def make_run(tmp_path: Path, case: str = "llama", **settings: Any) -> Run:
    """A run of two steps over a tiny model."""
    if not (tmp_path / "model").exists():
        write_family(tmp_path / "model", case)
    dataset = write_dataset(tmp_path / "data", LENGTHS, vocab=384)
    return Run(tmp_path / "run", tmp_path / "model", dataset, **{**SMALL, **settings})


def reports(run: Run) -> dict[str, dict[str, Any]]:
    """What the run told of its exports, by format."""
    told = [event for event in run.events if event.type == "export"]
    return {report["format"]: report for report in told[-1].data["exports"]}


@pytest.mark.parametrize("case", CASES)
def test_every_family_comes_back_exactly_where_nothing_is_rounded(
    tmp_path: Path, case: str
) -> None:
    run = make_run(tmp_path, case)
    run.go()
    check = reports(run)["hf"]["check"]
    assert check["matches"] and check["max_abs_diff"] == check["rounding_diff"] == 0
    assert check["argmax_agreement"] == 1 and check["num_prompts"] == 3
    assert check["num_positions"] == 24 + 17 + 32  # no more than 32 of a row
    assert check["largest_logit"] > 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_rounding_does_is_measured_and_is_all_that_differs(tmp_path: Path, dtype: str) -> None:
    run = make_run(tmp_path, export_dtype=dtype)
    run.go()
    check = reports(run)["hf"]["check"]
    assert 0 < check["max_abs_diff"] == check["rounding_diff"] < 0.1
    assert check["unexplained_diff"] == 0 < check["tolerance"] < check["rounding_diff"]


@pytest.mark.parametrize(
    ("settings", "format"),
    [
        ({}, "adapter"),
        ({"export_dtype": "bfloat16"}, "adapter"),
        ({"lora_rslora": True, "lora_targets": ("q_proj", "down_proj")}, "adapter"),
        ({"lora_export": "merged"}, "hf"),
        ({"lora_export": "merged", "export_dtype": "bfloat16"}, "hf"),
        ({"lora_export": "merged", "frozen_format": "nf4"}, "hf"),
        ({"frozen_format": "int8"}, "adapter"),
    ],
)
def test_adapters_and_merged_models_come_back(
    tmp_path: Path, settings: dict[str, Any], format: str
) -> None:
    """Also of a coded base: an export is of the model's own weights, and adapters stand on them."""
    run = make_run(tmp_path, **{**LORA, **settings})
    run.go()
    check = reports(run)[format]["check"]
    assert check["matches"] and check["argmax_agreement"] > 0.9
    assert check["unexplained_diff"] < (1e-5 if "export_dtype" not in settings else 1e-3)


@pytest.mark.parametrize("export", ["adapter", "merged"])
@pytest.mark.parametrize("case", ["mixtral", "qwen3_moe"])
def test_adapters_of_experts_come_back(tmp_path: Path, case: str, export: str) -> None:
    if case == "qwen3_moe":
        write_case(tmp_path / "model", case)  # a layer without experts has no adapters that load
    run = make_run(tmp_path, case, **LORA, lora_export=export)
    run.go()
    (report,) = reports(run).values()
    assert report["check"]["unexplained_diff"] < 1e-5


def test_a_model_that_is_frozen_in_part_comes_back(tmp_path: Path) -> None:
    run = make_run(tmp_path, freeze=("*.mlp.*", "*embed*"))
    run.go()
    assert reports(run)["hf"]["check"]["max_abs_diff"] == 0


@pytest.mark.parametrize("dtype", ["float32", "q8_0"])
@pytest.mark.parametrize("case", ["llama-3", "mixtral", "gemma3_text", "phi3"])
def test_a_gguf_file_beside_the_model_comes_back(tmp_path: Path, case: str, dtype: str) -> None:
    write_case(tmp_path / "model", case)
    run = make_run(tmp_path, export_gguf=dtype)
    run.go()
    check = reports(run)["gguf"]["check"]
    assert check["unexplained_diff"] < 1e-4  # Gemma's norms are kept as 1 + w, in float32
    assert check["matches"] and (check["rounding_diff"] > 0) == (dtype == "q8_0")
    assert (tmp_path / "run/run/export_gguf").is_dir() and "hf" in reports(run)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about transformers
def test_a_gguf_file_of_adapters_holds_the_merged_model(tmp_path: Path) -> None:
    write_case(tmp_path / "model", "qwen2")
    run = make_run(tmp_path, **LORA, export_gguf="float32")
    run.go()
    assert set(reports(run)) == {"adapter", "gguf"}
    assert reports(run)["gguf"]["check"]["max_abs_diff"] < 1e-5
    folder = tmp_path / "run/run/export_gguf"
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    tuned = PeftModel.from_pretrained(base, tmp_path / "run/run/export").eval()
    got = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file="model-F32.gguf", dtype=torch.float32
    )
    ids = torch.arange(24)[None]
    assert (got(ids).logits - tuned(ids).logits).abs().max() < 1e-5


def test_the_report_lies_beside_the_files_and_knows_their_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    result = run.go()
    folder = Path(result.export_dir or "")
    report = json.loads((folder / REPORT).read_text())
    assert {**report, "path": str(folder)} == reports(run)["hf"]
    assert report["step"] == 2 and report["dtype"] == "float32"
    found = {path.name for path in folder.iterdir()} - {REPORT}
    assert {file["name"] for file in report["files"]} == found
    for file in report["files"]:
        content = (folder / file["name"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(content), sha256(content).hexdigest())


def test_without_the_check_the_report_lists_files_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path, check_export=False)
    run.go()
    assert reports(run)["hf"]["check"] is None and len(reports(run)["hf"]["files"]) > 3


def spoil(folder: Path, change: Any) -> None:
    """Change the tensors of an export that is already on the disk."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def swap_heads(tensors: dict[str, torch.Tensor]) -> None:
    """Queries in the order of another format."""
    name = "model.layers.1.self_attn.q_proj.weight"
    tensors[name] = tensors[name].flip(0).contiguous()


def round_too_far(tensors: dict[str, torch.Tensor]) -> None:
    """Precision lost on the way."""
    for name, values in tensors.items():
        tensors[name] = values.bfloat16().float()


def lose_one(tensors: dict[str, torch.Tensor]) -> None:
    """A norm that was never written."""
    tensors["model.layers.0.input_layernorm.weight"].zero_()


def not_finite(tensors: dict[str, torch.Tensor]) -> None:
    """A bit that the drive lost."""
    tensors["model.norm.weight"][3] = float("nan")


@pytest.mark.parametrize("change", [swap_heads, round_too_far, lose_one])
def test_an_export_that_holds_something_else_fails_with_the_numbers(
    tmp_path: Path, change: Any
) -> None:
    """As if the drive had kept something else; the job can go on and exports again."""
    run = make_run(tmp_path)
    run.go()
    folder = tmp_path / "run/run/export"
    spoil(folder, change)
    with pytest.raises(
        ExportMismatch, match=r"over 73 positions they differ by up to [\d.e-]+.*resume"
    ):
        run.go()
    aside = folder.with_name("export.mismatch")
    assert not folder.exists() and not json.loads((aside / REPORT).read_text())["check"]["matches"]
    assert run.go().outcome == "succeeded"
    assert reports(run)["hf"]["check"]["matches"]


def test_an_export_with_weights_that_are_no_numbers_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.go()
    spoil(tmp_path / "run/run/export", not_finite)
    with pytest.raises(ModelError, match="model.norm.weight"):
        run.go()


def test_a_config_that_lost_something_is_found_out(tmp_path: Path) -> None:
    run = make_run(tmp_path, "gemma2")
    run.go()
    path = tmp_path / "run/run/export/config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "query_pre_attn_scalar": 24}))
    with pytest.raises(ExportMismatch):
        run.go()


def test_a_gguf_file_that_cannot_be_is_refused_before_training(tmp_path: Path) -> None:
    run = make_run(tmp_path, "mistral-window", export_gguf="q8_0")
    with pytest.raises(ModelError, match="a window of 8 tokens"):
        run.go()
    assert not run.metrics() and not list((tmp_path / "run/volume").iterdir())


def test_few_and_short_rows_are_prompts_too(tmp_path: Path) -> None:
    data = TokenDataset.open(write_dataset(tmp_path / "data", [3], vocab=384))
    assert [len(ids) for ids in prompts_of(data)] == [3, 3, 3]


def test_rounding_to_blocks_of_eight_bits_is_that_of_the_gguf_package() -> None:
    torch.manual_seed(0)
    values = torch.randn(64, 96) * torch.logspace(-12, 3, 64)[:, None]
    values[3] = 0
    kind = gguf.GGMLQuantizationType.Q8_0
    wanted = gguf.dequantize(gguf.quantize(values.numpy(), kind), kind)
    assert torch.equal(rounded(values, "q8_0"), torch.from_numpy(wanted.copy()))


def test_no_more_than_a_record_is_held_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of a layer is gone before the next but one is read, whatever their number."""
    read: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []
    named = streamed._Stream.named

    def counted(stream: Any, layout: RecordLayout) -> dict[str, torch.Tensor]:
        found = named(stream, layout)
        alive.append(sum(one() is not None for one in read))
        read.append(weakref.ref(next(iter(found.values()))))
        return found

    monkeypatch.setattr(streamed._Stream, "named", counted)
    write_case(tmp_path / "model", "llama", num_hidden_layers=9)
    make_run(tmp_path).go()
    assert len(alive) > 18 and max(alive) == 1


def test_the_memory_of_the_run_is_free_when_the_export_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Workspace]] = []

    class Seen(Workspace):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(weakref.ref(self))

    def checked(*args: Any, **kwargs: Any) -> Any:
        assert len(made) == 1 and made[0]() is None
        return check_store(*args, **kwargs)

    monkeypatch.setattr(run_module, "Workspace", Seen)
    monkeypatch.setattr(finish, "check_store", checked)
    make_run(tmp_path).go()
    assert made
