"""A directory becomes a GGUF file that gives its logits, or no file that anyone should trust."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.engine import ExportMismatch, ModelError, convert, convert_model
from headrace.engine.export_gguf import export_gguf
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
    assert {path.name for path in tmp_path.iterdir()} == {"hf", "out.mismatch"}


def test_a_directory_of_adapters_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError):
        convert_model(tmp_path, tmp_path / "out", dtype="auto")
