"""A model's files as plain Hugging Face directories: as they are, or as coded weights decode."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headrace.engine import prepare_model, read_model_spec
from headrace.engine.base_codes import decode, encode
from headrace.engine.model import CODE_BLOCK, ROUTER, CodedFormat
from headrace.engine.weight_source import open_source
from headrace.storage import round_up

WEIGHTS = "model.safetensors"


def as_checkpoint(model: Path, target: Path) -> Path:
    """The model of a .gguf file, or of a directory, as fp32 safetensors with its tokenizer.

    Read by the product: seconds, where transformers takes half a minute for the same bits
    (`tests/engine/test_gguf_real.py`).
    """
    folder = model
    if model.is_file():
        folder = target.with_name(f"{target.name}-source")
        folder.mkdir()
        shutil.copy(model, folder)
    assets = prepare_model(folder, target.with_name(f"{target.name}-assets"))
    shutil.copytree(assets, target, ignore=shutil.ignore_patterns("*.safetensors*"))
    spec = read_model_spec(folder)
    tensors: dict[str, Tensor] = {}
    with open_source(folder, spec) as source:
        for layout in spec.records:
            flat = torch.empty(layout.num_elements)
            source.read_record(layout, flat)
            for param in layout.params:
                whole = tensors.setdefault(param.name, torch.empty(param.full_shape))
                values = flat[param.offset : param.offset + param.num_elements]
                rows = slice(param.row_start, param.row_start + param.shape[0])
                whole[rows] = values.view(param.shape)
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    return target


def decoded_copy(model_dir: Path, target: Path, base: CodedFormat) -> Path:
    """The model with its weights as a run with that frozen format computes with them, as fp32."""
    shutil.copytree(model_dir, target)
    tensors = load_file(model_dir / WEIGHTS)
    for name, values in tensors.items():
        if ".layers." in name and values.dim() == 2 and not name.endswith(ROUTER):
            flat = torch.zeros(round_up(values.numel(), CODE_BLOCK))
            flat[: values.numel()] = values.flatten()
            whole = torch.empty_like(flat)
            decode(*coded(flat, base), whole, base)
            tensors[name] = whole[: values.numel()].view_as(values).clone()
        else:
            tensors[name] = values.bfloat16().float()
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    return target


def coded(weights: Tensor, base: CodedFormat) -> tuple[Tensor, Tensor]:
    """Codes and scales of fp32 weights, 1-D, whole blocks."""
    dtype, per_code = (torch.uint8, 2) if base == "nf4" else (torch.int8, 1)
    codes = torch.empty(weights.numel() // per_code, dtype=dtype)
    scales = torch.empty(weights.numel() // CODE_BLOCK)
    encode(weights, codes, scales, base)
    return codes, scales
