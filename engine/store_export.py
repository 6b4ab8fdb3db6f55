"""A run's result as files: the whole model, or its adapters for peft."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from headrace.storage import HostSlot, TensorStore

from .config import TrainConfig
from .export import ReadPieces, export_checkpoint
from .export_adapter import export_adapter
from .lora import DOWN, UP
from .methods import without_adapters
from .model import ModelSpec, ParamSpec, RecordLayout
from .pieces import split_record
from .source import source_dtype
from .weight_source import WeightSource, open_source
from .weights import conversion_room, stored_pieces

Adapters = dict[str, tuple[Tensor, Tensor]]  # by name of the weight: A and B


def export_store(
    store: TensorStore, spec: ModelSpec, slot: HostSlot, config: TrainConfig, target_dir: Path
) -> None:
    """Write what the run trained as a directory; `slot` holds one record at a time.

    What is frozen comes from the checkpoint that the run started from, to its last bit. Export
    dtype `auto` is the checkpoint's, and float32 for adapters.
    """
    model_dir = Path(config.model)
    assets_dir = Path(config.assets) if config.assets else model_dir
    if spec.lora is not None and config.lora_export == "adapter":
        export_adapter(
            target_dir,
            spec,
            assets_dir=assets_dir,
            base_name=model_dir.name,
            dtype="float32" if config.export_dtype == "auto" else config.export_dtype,
            read_pieces=_trained_pieces(store, spec, slot),
        )
        return
    dtype = source_dtype(model_dir) if config.export_dtype == "auto" else config.export_dtype
    plain = without_adapters(spec)
    with open_source(model_dir, plain) as source:
        export_checkpoint(
            target_dir,
            plain,
            assets_dir=assets_dir,
            dtype=dtype,
            read_pieces=_model_pieces(store, spec, slot, source),
        )


def _trained_pieces(store: TensorStore, spec: ModelSpec, slot: HostSlot) -> ReadPieces:
    def read_pieces(layout: RecordLayout) -> Iterator[tuple[ParamSpec, Tensor]]:
        return stored_pieces(store, layout, slot, spec.head_dim)

    return read_pieces


def _model_pieces(
    store: TensorStore, spec: ModelSpec, slot: HostSlot, source: WeightSource
) -> ReadPieces:
    trained = _trained_pieces(store, spec, slot)
    beside = spec.beside if spec.lora is not None else {}

    def read_pieces(layout: RecordLayout) -> Iterator[tuple[ParamSpec, Tensor]]:
        if layout.base is None:
            yield from trained(layout)
            return
        adapters = _adapters(store, beside.get(layout.name), slot)
        room = conversion_room(slot, store.records[layout.name])
        for _, piece in split_record(layout, room.numel(), spec.head_dim):
            (param,) = piece.params
            flat = room[: piece.num_elements]
            source.read_record(piece, flat)
            if param.name in adapters and spec.lora is not None:
                down, up = adapters[param.name]
                rows = up[param.row_start : param.row_start + param.shape[0]]
                flat.view(param.shape).addmm_(rows, down, alpha=spec.lora.scaling)
            yield param, flat

    return read_pieces


def _adapters(store: TensorStore, layout: RecordLayout | None, slot: HostSlot) -> Adapters:
    """Both matrices of a layer's adapters, in memory of their own."""
    if layout is None:
        return {}
    found: dict[str, list[Tensor]] = {}
    for param, values in stored_pieces(store, layout, slot, unit_rows=1):
        found.setdefault(param.name, []).append(values.view(param.shape).clone())
    whole = {name: torch.cat(pieces) for name, pieces in found.items()}
    modules = [name.removesuffix(f".{DOWN}") for name in whole if name.endswith(DOWN)]
    return {f"{m}.weight": (whole[f"{m}.{DOWN}"], whole[f"{m}.{UP}"]) for m in modules}
