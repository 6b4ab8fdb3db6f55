"""Reading an export back, as someone else would: from its own config and files alone."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from .config import TrainConfig
from .export import ReadPieces
from .export_adapter import FILE, PREFIX
from .export_forms import ExportForm
from .methods import method_spec, without_adapters
from .model import ModelSpec, ParamSpec, RecordLayout
from .model_files import ModelError, read_json_file
from .pieces import pread_exactly, split_record
from .safetensors_header import FLOAT_DTYPES, read_header
from .source import read_model_spec
from .tensor_table import TensorEntry
from .weight_source import WeightSource, open_source

_PIECE_ELEMENTS = 2**22


@contextmanager
def open_export(
    export_dir: Path, form: ExportForm, spec: ModelSpec
) -> Iterator[tuple[ModelSpec, ReadPieces]]:
    """The model that the files describe, and its weights by its records.

    Adapters stand on the model that they were trained beside. Raises ModelError.
    """
    if form.format != "adapter":
        found = read_model_spec(export_dir)
        with open_source(export_dir, found) as source:
            yield found, pieces_of(source, found)
        return
    found = _adapted(export_dir, form)
    with open_source(form.model_dir, without_adapters(found)) as source:
        yield found, _with_adapters(pieces_of(source, found), read_header(export_dir / FILE))


def _adapted(export_dir: Path, form: ExportForm) -> ModelSpec:
    """The original model with the adapters that adapter_config.json tells of."""
    told = read_json_file(export_dir, "adapter_config.json")
    targets = told["target_modules"]
    config = TrainConfig(
        model=str(form.model_dir),
        dataset="",
        method="lora",
        lora_rank=told["r"],
        lora_alpha=float(told["lora_alpha"]),
        lora_rslora=told["use_rslora"],
        lora_targets=(targets,) if isinstance(targets, str) else tuple(targets),
    )
    return method_spec(read_model_spec(form.model_dir), config)


def pieces_of(source: WeightSource, spec: ModelSpec) -> ReadPieces:
    """Records of files in pieces, each valid until the next one is asked for."""
    widest = max(param.num_elements // param.shape[0] for r in spec.records for param in r.params)
    room = torch.empty(max(_PIECE_ELEMENTS, widest * spec.head_dim))

    def read(layout: RecordLayout) -> Iterator[tuple[ParamSpec, Tensor]]:
        for _, piece in split_record(layout, room.numel(), spec.head_dim):
            values = room[: piece.num_elements]
            source.read_record(piece, values)
            yield piece.params[0], values

    return read


def _with_adapters(base: ReadPieces, entries: Mapping[str, TensorEntry]) -> ReadPieces:
    def read(layout: RecordLayout) -> Iterator[tuple[ParamSpec, Tensor]]:
        if layout.kind != "beside":
            yield from base(layout)
            return
        for param in layout.params:
            yield param, _adapter(entries, PREFIX + param.name, param.shape)

    return read


def _adapter(entries: Mapping[str, TensorEntry], name: str, shape: tuple[int, ...]) -> Tensor:
    """A whole tensor of the adapters' file, fp32, 1-D."""
    entry = entries.get(name)
    if entry is None or entry.shape != shape:
        found = "missing" if entry is None else f"of shape {list(entry.shape)}"
        raise ModelError(f"tensor {name} of the adapters is {found}; wanted shape {list(shape)}")
    raw = torch.empty(entry.num_bytes, dtype=torch.uint8)
    with entry.path.open("rb") as file:
        pread_exactly(file.fileno(), raw.numpy(), entry.start, entry.path)
    return raw.view(getattr(torch, FLOAT_DTYPES[entry.dtype])).float()
