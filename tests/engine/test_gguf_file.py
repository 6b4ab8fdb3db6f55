"""GGUF weights reach records dequantised, and in the row order that transformers' Llama wants."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from headrace.engine import gguf_file
from headrace.engine.gguf_model import READABLE_TYPES
from headrace.engine.model import ModelSpec
from headrace.engine.model_files import ModelError
from headrace.engine.source import read_model_spec, source_dtype
from headrace.engine.weight_source import open_source
from tiny import make_tiny_llama
from tiny_gguf import quantised, stored_tensors, write_gguf


def read_all(model: Path, spec: ModelSpec) -> dict[str, torch.Tensor]:
    """Whole tensors by name, joined from the records; fails when a gap is not zero."""
    tensors = {
        param.name: torch.full(param.full_shape, float("nan"))
        for record in spec.records
        for param in record.params
    }
    with open_source(model, spec) as source:
        for record in spec.records:
            target = torch.full((record.num_elements,), float("nan"))
            source.read_record(record, target)
            for param in record.params:
                stop = param.offset + param.num_elements
                rows = slice(param.row_start, param.row_start + param.shape[0])
                tensors[param.name][rows] = target[param.offset : stop].view(param.shape)
                target[param.offset : stop] = 0
            assert torch.equal(target, torch.zeros_like(target)), f"{record.name}: gaps"
    return tensors


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_float_gguf_gives_the_weights_it_was_made_from(
    tmp_path: Path, tied: bool, bias: bool
) -> None:
    model_dir = make_tiny_llama(
        tmp_path / "hf", tied=tied, seed=3, bias=bias, head_dim=24, vocab=1500
    )
    path = write_gguf(model_dir, tmp_path / "model/tiny.gguf")
    spec = read_model_spec(path.parent)
    assert len(spec.of_kind("embedding")) == 7  # tables come in row pieces
    wanted = read_all(model_dir, read_model_spec(model_dir))
    got = read_all(path.parent, spec)
    assert got.keys() == wanted.keys()
    for name, tensor in got.items():
        assert torch.equal(tensor, wanted[name]), name


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_1", "Q8_0"])
def test_quantised_gguf_gives_what_its_blocks_mean(tmp_path: Path, kind: str) -> None:
    model_dir = make_tiny_llama(tmp_path / "hf", tied=True, seed=3, layers=1)
    path = write_gguf(model_dir, tmp_path / "tiny.gguf", kind=kind)
    got = read_all(path, read_model_spec(path))
    for name, values in stored_tensors(model_dir).items():
        wanted = torch.from_numpy(gguf.dequantize(*quantised(values, kind)).copy())
        if ".q_proj." in name or ".k_proj." in name:
            assert not torch.equal(got[name], wanted), f"{name}: rows are still in pairs"
            wanted = torch.cat([head[i::2] for head in torch.split(wanted, 16) for i in (0, 1)])
        assert torch.equal(got[name], wanted), name


def test_pieces_smaller_than_a_tensor_join_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_dir = make_tiny_llama(tmp_path / "hf", tied=True, seed=3, layers=1)
    path = write_gguf(model_dir, tmp_path / "tiny.gguf", kind="Q8_0")
    spec = read_model_spec(path)
    whole = read_all(path, spec)
    monkeypatch.setattr(gguf_file, "PIECE_ELEMENTS", 200)
    pieces = read_all(path, spec)
    assert all(torch.equal(pieces[name], whole[name]) for name in whole)


def test_every_type_called_readable_can_be_dequantised() -> None:
    for name in READABLE_TYPES:
        kind = gguf.GGMLQuantizationType[name]
        elements, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        values = gguf.dequantize(np.zeros((3, 2 * num_bytes), dtype=np.uint8), kind)
        assert values.shape == (3, 2 * elements) and values.dtype == np.float32, name


def test_source_dtype_of_a_gguf_is_bfloat16(tmp_path: Path) -> None:
    model_dir = make_tiny_llama(tmp_path / "hf", tied=True, seed=3, layers=1)
    assert source_dtype(write_gguf(model_dir, tmp_path / "tiny.gguf")) == "bfloat16"


def test_gguf_that_shrinks_while_open_is_an_error_with_the_place(tmp_path: Path) -> None:
    model_dir = make_tiny_llama(tmp_path / "hf", tied=True, seed=3, layers=1)
    path = write_gguf(model_dir, tmp_path / "tiny.gguf")
    spec = read_model_spec(path)
    with open_source(path, spec) as source:
        with path.open("r+b") as file:
            file.truncate(50_000)
        record = spec.of_kind("layer")[0]
        with pytest.raises(ModelError, match=r"tiny.gguf: wanted \d+ bytes at \d+, got"):
            source.read_record(record, torch.empty(record.num_elements))
