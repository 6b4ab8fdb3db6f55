"""A run's result as files, and what is in them beside what is in the store."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from headrace.storage import HostSlot, TensorStore

from .export import ReadPieces, export_checkpoint
from .export_adapter import export_adapter
from .export_check import Comparison, compare
from .export_forms import ExportForm
from .lora import DOWN, UP
from .methods import without_adapters
from .model import ModelSpec, ParamSpec, RecordLayout
from .pieces import split_record
from .weight_source import WeightSource, open_source
from .weights import conversion_room, stored_pieces

Adapters = dict[str, tuple[Tensor, Tensor]]  # by name of the weight: A and B


def export_store(
    store: TensorStore, spec: ModelSpec, slot: HostSlot, form: ExportForm, target_dir: Path
) -> None:
    """Write what the run trained as a directory; `slot` holds one record at a time.

    What is frozen comes from the checkpoint that the run started from, to its last bit.
    """
    if form.format == "adapter":
        export_adapter(
            target_dir,
            spec,
            assets_dir=form.assets_dir,
            base_name=form.model_dir.name,
            dtype=form.dtype,
            read_pieces=_trained_pieces(store, spec, slot),
        )
        return
    plain = without_adapters(spec)
    with open_source(form.model_dir, plain) as source:
        read_pieces = _model_pieces(store, spec, slot, source, merged=True)
        if form.format == "gguf":
            from .export_gguf import export_gguf  # its package is optional

            export_gguf(
                target_dir,
                plain,
                assets_dir=form.assets_dir,
                name=form.model_dir.name,
                dtype=form.dtype,
                read_pieces=read_pieces,
            )
            return
        export_checkpoint(
            target_dir,
            plain,
            assets_dir=form.assets_dir,
            dtype=form.dtype,
            read_pieces=read_pieces,
        )


def check_store(
    store: TensorStore,
    spec: ModelSpec,
    slot: HostSlot,
    form: ExportForm,
    export_dir: Path,
    *,
    prompts: Sequence[Tensor],
    device: torch.device,
) -> Comparison:
    """Read an export back and compare it with the run's state; ModelError for broken files."""
    plain = without_adapters(spec)
    with open_source(form.model_dir, plain) as source:
        read_pieces = _model_pieces(store, spec, slot, source, merged=False)
        return compare(export_dir, form, spec, read_pieces, prompts, device=device)


def _trained_pieces(store: TensorStore, spec: ModelSpec, slot: HostSlot) -> ReadPieces:
    def read_pieces(layout: RecordLayout) -> Iterator[tuple[ParamSpec, Tensor]]:
        return stored_pieces(store, layout, slot, spec.head_dim)

    return read_pieces


def _model_pieces(
    store: TensorStore, spec: ModelSpec, slot: HostSlot, source: WeightSource, *, merged: bool
) -> ReadPieces:
    """What is trained from the store, what is frozen from the model's files, with its adapters
    added if `merged`."""
    trained = _trained_pieces(store, spec, slot)
    beside = spec.beside if merged and spec.lora is not None else {}

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
