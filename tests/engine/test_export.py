"""Exports: what transformers and safetensors read back is what was trained; whole or not at all."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM

from headrace.engine.export import export_checkpoint
from headrace.engine.model import RecordLayout
from headrace.engine.model_files import ModelError
from headrace.engine.safetensors_header import read_checkpoint
from headrace.engine.source import read_model_spec, source_dtype
from headrace.engine.weight_source import open_source
from headrace.storage import NoSpace
from runs import whole_params
from tiny import make_tiny_llama


def export_copy(model_dir: Path, target_dir: Path, *, pieces: int = 0, **kwargs: Any) -> None:
    """Export a model as it is."""
    spec = read_model_spec(model_dir, max_record_elements=pieces)
    with open_source(model_dir, spec) as source:
        export_checkpoint(
            target_dir,
            spec,
            assets_dir=model_dir,
            read_pieces=whole_params(spec, source.read_record),
            **kwargs,
        )


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shard_bytes", [4 * 10**9, 60_000])
def test_transformers_loads_an_export_with_the_same_weights(
    tmp_path: Path, tied: bool, dtype: str, shard_bytes: int
) -> None:
    source = make_tiny_llama(tmp_path / "source", tied=tied, seed=2, bias=True, vocab=1500)
    assert len(read_model_spec(source).of_kind("embedding")) == 8  # tables come in row pieces
    target = tmp_path / "out"
    export_copy(source, target, dtype=dtype, shard_bytes=shard_bytes)
    wanted = LlamaForCausalLM.from_pretrained(source).state_dict()
    model = LlamaForCausalLM.from_pretrained(target)
    assert model.dtype is getattr(torch, dtype) and source_dtype(target) == dtype
    got = model.state_dict()
    assert got.keys() == wanted.keys()
    for name, tensor in got.items():
        assert torch.equal(tensor, wanted[name].to(tensor.dtype)), name


def test_shards_stay_under_their_size_and_the_index_names_every_tensor(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", tied=False, seed=2)
    export_copy(source, tmp_path / "out", dtype="bfloat16", shard_bytes=60_000)
    paths = sorted((tmp_path / "out").glob("*.safetensors"))
    names = [f"model-{i + 1:05d}-of-{len(paths):05d}.safetensors" for i in range(len(paths))]
    assert [path.name for path in paths] == names and len(paths) > 3
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    held = {name: path.name for path in paths for name in load_file(path)}
    assert index["weight_map"] == held
    assert index["metadata"]["total_size"] == read_model_spec(source).num_params * 2
    assert all(path.stat().st_size <= 60_000 + 4096 for path in paths)


def test_a_tied_table_is_stored_once_and_data_starts_on_a_page(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", tied=True, seed=2)
    export_copy(source, tmp_path / "out", dtype="float32")
    entries = read_checkpoint(tmp_path / "out")
    assert "lm_head.weight" not in entries
    assert min(entry.start for entry in entries.values()) % 4096 == 0


def test_export_brings_tokenizer_template_and_generation_config(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", tied=True, seed=2)
    (source / "LICENSE").write_text("for all")
    (source / "optimizer.safetensors.bak").write_text("not this")
    export_copy(source, tmp_path / "out", dtype="float32")
    kept = {"config.json", "generation_config.json", "chat_template.jinja", "tokenizer.json",
            "tokenizer_config.json", "model.safetensors", "LICENSE"}  # fmt: skip
    assert {path.name for path in (tmp_path / "out").iterdir()} == kept
    messages = [{"role": "user", "content": "How many sluices are open?"}]
    before, after = (
        AutoTokenizer.from_pretrained(path).apply_chat_template(messages, return_dict=False)
        for path in (source, tmp_path / "out")
    )
    assert before == after


def test_config_keeps_everything_but_the_dtype(tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "factor": 2.0}
    source = make_tiny_llama(tmp_path / "source", tied=True, seed=2, rope_scaling=rope)
    config = json.loads((source / "config.json").read_text())
    del config["dtype"]
    (source / "config.json").write_text(json.dumps({**config, "torch_dtype": "float32", "x": [1]}))
    export_copy(source, tmp_path / "out", dtype="bfloat16")
    got = json.loads((tmp_path / "out/config.json").read_text())
    assert got == {**config, "torch_dtype": "bfloat16", "x": [1]}


def test_exporting_an_export_changes_no_bit(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", tied=False, seed=2, dtype="bfloat16", vocab=1500)
    export_copy(source, tmp_path / "a", dtype="bfloat16", pieces=2**26)
    export_copy(tmp_path / "a", tmp_path / "b", dtype="bfloat16")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_existing_directory_is_not_overwritten(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", tied=True, seed=2, layers=1)
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError, match="overwrites nothing"):
        export_copy(source, tmp_path / "out", dtype="float32")
    assert list((tmp_path / "out").iterdir()) == []


def test_failed_export_leaves_nothing_behind(tmp_path: Path) -> None:
    spec = read_model_spec(make_tiny_llama(tmp_path / "source", tied=True, seed=2))

    def fail_at_the_second_layer(layout: RecordLayout, target: torch.Tensor) -> None:
        if layout.name == "layers.1":
            raise OSError("the drive is gone")
        target.zero_()

    with pytest.raises(OSError, match="the drive is gone"):
        export_checkpoint(
            tmp_path / "exports/out",
            spec,
            assets_dir=tmp_path / "source",
            dtype="float32",
            read_pieces=whole_params(spec, fail_at_the_second_layer),
        )
    assert list((tmp_path / "exports").iterdir()) == []


def test_remains_of_a_killed_export_are_replaced(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", tied=True, seed=2, layers=1)
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial/model.safetensors").write_bytes(b"half")
    export_copy(source, tmp_path / "out", dtype="float32")
    assert read_model_spec(tmp_path / "out") == read_model_spec(source)
    assert not (tmp_path / ".out.partial").exists()


@pytest.mark.parametrize("value", [1e5, float("nan"), float("inf")])
def test_weight_that_float16_cannot_hold_is_refused(tmp_path: Path, value: float) -> None:
    spec = read_model_spec(make_tiny_llama(tmp_path / "source", tied=True, seed=2, layers=1))

    def one_large(layout: RecordLayout, target: torch.Tensor) -> None:
        target.zero_()
        target[7] = value

    with pytest.raises(ModelError, match="model.embed_tokens.weight.*export as bfloat16"):
        export_checkpoint(
            tmp_path / "out",
            spec,
            assets_dir=tmp_path / "source",
            dtype="float16",
            read_pieces=whole_params(spec, one_large),
        )


def test_too_little_space_is_found_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_tiny_llama(tmp_path / "source", tied=True, seed=2, layers=1)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(NoSpace, match=r"wants \d+ bytes in .*, 1000 are free"):
        export_copy(source, tmp_path / "out", dtype="float32")
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_unknown_export_dtype_is_refused(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", tied=True, seed=2, layers=1)
    with pytest.raises(ValueError, match="'int8'; wanted one of float32, float16, bfloat16"):
        export_copy(source, tmp_path / "out", dtype="int8")


def test_link_among_the_assets_does_not_carry_other_files_out(tmp_path: Path) -> None:
    source = make_tiny_llama(tmp_path / "source", tied=True, seed=2, layers=1)
    (tmp_path / "secret").write_text("token")
    (source / "tokenizer_extra.json").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match="a link that leaves its directory"):
        export_copy(source, tmp_path / "out", dtype="float32")
    assert not (tmp_path / "out").exists()
