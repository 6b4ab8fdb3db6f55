"""A directory becomes a GGUF file that gives its logits, or no file that anyone should trust."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.engine import ExportMismatch, ModelError, convert, convert_model
from headrace.engine.export_gguf import export_gguf
from headrace.engine.tokenizer import load_tokenizer, prepare_model
from tiny_gguf_families import write_case


@pytest.mark.parametrize(("dtype", "kept"), [("auto", "bfloat16"), ("q8_0", "q8_0")])
def test_a_converted_model_is_compared_with_the_directory(
    tmp_path: Path, dtype: str, kept: str
) -> None:
    source = write_case(tmp_path / "hf", "qwen3", dtype="bfloat16")
    report = convert_model(source, tmp_path / "out", dtype=dtype)
    assert report["dtype"] == kept and report["step"] is None
    check = report["check"]
    assert check["matches"] and check["unexplained_diff"] == 0 and check["num_prompts"] == 3
    assert (check["max_abs_diff"] > 0) == (dtype == "q8_0")
    assert json.loads((tmp_path / "out/export_report.json").read_text()) == report
    assert (tmp_path / f"out/model-{'BF16' if dtype == 'auto' else 'Q8_0'}.gguf").is_file()


def test_a_conversion_that_went_wrong_is_an_error_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_case(tmp_path / "hf", "qwen3")

    def zeroed(target_dir: Path, *args: Any, **kwargs: Any) -> None:
        export_gguf(target_dir, *args, **kwargs)
        path = target_dir / "model-F32.gguf"
        data = bytearray(path.read_bytes())
        data[-4096:] = bytes(4096)
        path.write_bytes(data)

    monkeypatch.setattr(convert, "export_gguf", zeroed)
    with pytest.raises(ExportMismatch, match="differ by up to .* convert again"):
        convert_model(source, tmp_path / "out", dtype="float32")
    with pytest.raises(ExportMismatch, match="one.gguf.mismatch"):
        convert_model(source, tmp_path / "one.gguf", dtype="float32")
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"hf", "out.mismatch", "one.gguf.mismatch"}


def test_one_file_is_made_where_the_target_is_a_files_name(tmp_path: Path) -> None:
    source = write_case(tmp_path / "hf", "qwen3", dtype="bfloat16")
    report = convert_model(source, tmp_path / "new" / "out.gguf", dtype="q8_0")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out.gguf"]
    (told,) = report["files"]
    written = (tmp_path / "new/out.gguf").read_bytes()
    assert (told["name"], told["bytes"]) == ("out.gguf", len(written))
    assert told["sha256"] == hashlib.sha256(written).hexdigest()
    assert report["check"]["matches"]


@pytest.mark.parametrize("in_directory", [False, True])
def test_a_gguf_file_is_converted_to_another_dtype(tmp_path: Path, in_directory: bool) -> None:
    source = write_case(tmp_path / "hf", "qwen3", dtype="bfloat16")
    convert_model(source, tmp_path / "first", dtype="auto")
    model = tmp_path / "first" if in_directory else tmp_path / "first/model-BF16.gguf"
    report = convert_model(model, tmp_path / "small.gguf", dtype="q8_0")
    assert report["check"]["matches"] and report["check"]["max_abs_diff"] > 0
    again = convert_model(tmp_path / "first", tmp_path / "again.gguf", dtype="auto")
    assert again["dtype"] == "bfloat16" and again["check"]["max_abs_diff"] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"hf", "first", "small.gguf", "again.gguf"}
    ids = [load_tokenizer(prepare_model(one, tmp_path / "cache")).encode("Why so? 42")
           for one in (tmp_path / "small.gguf", source)]  # fmt: skip
    assert ids[0] == ids[1]


@pytest.mark.parametrize(
    ("model", "target", "said"),
    [
        ("adapters", "out", "it holds adapters alone, not a model"),
        ("none", "out", "neither a directory nor a .gguf file"),
        ("hf/model.safetensors", "out.gguf", "give a model's folder"),
        ("hf/config.json", "out.gguf", "neither a directory nor a .gguf file"),
        ("empty", "out.gguf", "it holds no weights"),
        ("two", "out.gguf", "holds 2 GGUF files (a.gguf, b.gguf); keep one"),
        ("broken.gguf", "out.gguf", "is not a GGUF file"),
        ("hf", "out.safetensors", "converted to GGUF alone; name a .gguf file"),
        ("hf", "hf/out.gguf", "lies in the directory of the model itself"),
        ("hf", "hf/sub/out", "lies in the directory of the model itself"),
    ],
)
def test_what_cannot_be_converted_so_is_refused_and_leaves_nothing(
    tmp_path: Path, model: str, target: str, said: str
) -> None:
    write_case(tmp_path / "hf", "qwen3")
    for name in ("adapters/adapter_config.json", "two/a.gguf", "two/b.gguf", "broken.gguf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}  ")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ModelError) as refused:
        convert_model(tmp_path / model, tmp_path / target, dtype="auto")
    assert said in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source = write_case(tmp_path / "hf", "qwen3")
    (tmp_path / "out.gguf").write_text("mine")
    with pytest.raises(FileExistsError, match="exists already; name one that does not"):
        convert_model(source, tmp_path / "out.gguf", dtype="auto")
    assert (tmp_path / "out.gguf").read_text() == "mine"
