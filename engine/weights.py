"""Weights between a checkpoint and the store, one record at a time."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from headrace.storage import HostSlot, RecordSpec, TensorStore

from .config import ExportDtype
from .export import export_checkpoint
from .model import ModelSpec, ParamSpec, RecordLayout
from .pieces import split_record
from .report import Emit, RunEvent
from .source import source_dtype
from .state import (
    clear_state,
    read_weights,
    state_views,
    weight_names,
    write_weights,
)
from .weight_source import open_source


def import_state(
    model_dir: Path, spec: ModelSpec, store: TensorStore, slot: HostSlot, emit: Emit
) -> None:
    """Fill the store's working generation: weights from the checkpoint, moments zero.

    `slot` holds one record at a time, and its fp32 weights while they are converted.
    """
    tenth = max(1, len(spec.records) // 10)
    with open_source(model_dir, spec) as source:
        for i, layout in enumerate(spec.records):
            record = store.records[layout.name]
            clear_state(slot, record)
            state, room = state_views(slot, record), conversion_room(slot, record)
            for start, piece in split_record(layout, room.numel(), spec.head_dim):
                flat = room[: piece.num_elements]
                source.read_record(piece, flat)
                write_weights(state, flat, start)
            room.zero_()
            store.write_from(layout.name, slot).result()
            if i % tenth == 0:
                done = {"records": i + 1, "total_records": len(spec.records)}
                emit(RunEvent(type="phase", message="importing the model", data=done))


def conversion_room(slot: HostSlot, record: RecordSpec) -> Tensor:
    """fp32 memory, 1-D, behind a record's weights in a slot: where the slot has moments.

    They are written after the weights and not read by an export, so converting takes no memory
    that the plan does not count.
    """
    end = max(stop for _, stop in record.runs(weight_names(record, "float32")))
    return slot.tensor(torch.float32, (slot.nbytes - end) // 4, end)


def export_store(
    store: TensorStore,
    spec: ModelSpec,
    slot: HostSlot,
    *,
    model_dir: Path,
    assets_dir: Path,
    target_dir: Path,
    dtype: ExportDtype = "auto",
) -> None:
    """Write the store's weights as a Hugging Face directory; `slot` holds one record at a time.

    `auto` keeps the dtype of the checkpoint that the run started from.
    """

    def read_pieces(layout: RecordLayout) -> Iterator[tuple[ParamSpec, Tensor]]:
        record = store.records[layout.name]
        names = weight_names(record, "float32")
        store.read_into(layout.name, slot, tensors=names).result()
        state, room = state_views(slot, record), conversion_room(slot, record)
        for start, piece in split_record(layout, room.numel(), spec.head_dim):
            flat = room[: piece.num_elements]
            read_weights(state, flat, start)
            yield piece.params[0], flat

    export_checkpoint(
        target_dir,
        spec,
        assets_dir=assets_dir,
        dtype=source_dtype(model_dir) if dtype == "auto" else dtype,
        read_pieces=read_pieces,
    )
