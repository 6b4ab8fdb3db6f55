"""Weights of safetensors files reach records exactly, in pieces, and with zeros in the gaps."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from headrace.engine import safetensors_file
from headrace.engine.model_files import ModelError
from headrace.engine.source import read_model_spec
from headrace.engine.weight_source import open_source
from tiny import make_tiny_llama


def library_tensors(model_dir: Path) -> dict[str, torch.Tensor]:
    """Every tensor as the safetensors library reads it."""
    tensors: dict[str, torch.Tensor] = {}
    for path in model_dir.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}
    return tensors


def assert_source_equals(model_dir: Path) -> None:
    spec = read_model_spec(model_dir)
    wanted = library_tensors(model_dir)
    with open_source(model_dir, spec) as source:
        for record in spec.records:
            target = torch.full((record.num_elements,), float("nan"))
            source.read_record(record, target)
            for param in record.params:
                stop = param.offset + param.num_elements
                got = target[param.offset : stop].view(param.shape)
                rows = slice(param.row_start, param.row_start + param.shape[0])
                assert torch.equal(got, wanted[param.name][rows].float()), param.name
                target[param.offset : stop] = 0
            assert torch.equal(target, torch.zeros_like(target)), f"{record.name}: gaps"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_records_hold_the_values_of_the_files(tmp_path: Path, dtype: str, num_shards: int) -> None:
    make_tiny_llama(
        tmp_path, tied=False, seed=1, dtype=dtype, num_shards=num_shards, bias=True, vocab=1500
    )
    assert len(read_model_spec(tmp_path).of_kind("head")) == 8  # tables come in row pieces
    assert_source_equals(tmp_path)


def test_pieces_smaller_than_a_tensor_join_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_file, "PIECE_BYTES", 1000)
    make_tiny_llama(tmp_path, tied=True, seed=1, dtype="bfloat16", hidden=40, head_dim=10)
    assert_source_equals(tmp_path)


def test_data_at_an_odd_byte_is_read_exactly(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=1, layers=1)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip() + b" "
    header += b" " * (1 - len(header) % 2)  # now odd in length
    path.write_bytes((len(header)).to_bytes(8, "little") + header + data[8 + length :])
    assert len(header) % 2 == 1
    assert_source_equals(tmp_path)


def test_file_that_shrinks_while_open_is_an_error_with_the_place(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=1, layers=1)
    spec = read_model_spec(tmp_path)
    path = tmp_path / "model.safetensors"
    with open_source(tmp_path, spec) as source:
        with path.open("r+b") as file:
            file.truncate(20_000)
        record = spec.of_kind("layer")[0]
        with pytest.raises(ModelError, match=r"model.safetensors: wanted \d+ bytes at \d+, got"):
            source.read_record(record, torch.empty(record.num_elements))


def test_files_swapped_after_the_spec_was_read_are_refused(tmp_path: Path) -> None:
    spec = read_model_spec(make_tiny_llama(tmp_path / "a", tied=True, seed=1))
    other = make_tiny_llama(tmp_path / "b", tied=True, seed=1, hidden=32)
    with pytest.raises(ModelError, match="config and weights are of different models"):
        open_source(other, spec)


def test_tied_model_may_store_its_table_twice_only_if_both_are_equal(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=1, layers=1)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    head = tensors["model.embed_tokens.weight"].clone()
    save_file({**tensors, "lm_head.weight": head}, path)
    assert_source_equals(tmp_path)
    head[-1, -1] += 1
    save_file({**tensors, "lm_head.weight": head}, path)
    with pytest.raises(ModelError, match="set tie_word_embeddings to false"):
        open_source(tmp_path, read_model_spec(tmp_path))


def test_derived_tensors_of_old_exporters_are_ignored(tmp_path: Path) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=1, layers=1)
    path = tmp_path / "model.safetensors"
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    save_file({**load_file(path), name: torch.ones(8)}, path)
    assert name not in json.dumps(
        [param.name for record in read_model_spec(tmp_path).records for param in record.params]
    )


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 3.4e38])
def test_weight_that_no_state_format_holds_is_refused_by_name(tmp_path: Path, value: float) -> None:
    make_tiny_llama(tmp_path, tied=True, seed=1, layers=1)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = value
    save_file(tensors, path)
    spec = read_model_spec(tmp_path)
    record = spec.of_kind("layer")[0]
    with open_source(tmp_path, spec) as source:
        with pytest.raises(ModelError, match="layers.0.mlp.up_proj.weight of the checkpoint"):
            source.read_record(record, torch.empty(record.num_elements))
