"""Weights from a checkpoint into the store and back out of it, one record at a time."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from headrace.storage import HostSlot, RecordSpec, TensorStore

from .adapter_values import initial_adapter
from .frozen import write_frozen
from .frozen_pieces import frozen_pieces
from .methods import without_adapters
from .model import ModelSpec, ParamSpec, RecordLayout
from .pieces import split_record
from .report import Emit, Poll, RunEvent, go_on
from .state import (
    clear_state,
    frozen_views,
    read_weights,
    state_views,
    weight_names,
    write_weights,
)
from .weight_source import WeightSource, open_source


def import_state(
    model_dir: Path,
    spec: ModelSpec,
    store: TensorStore,
    slot: HostSlot,
    emit: Emit,
    *,
    seed: int,
    poll: Poll,
) -> None:
    """Fill the store's working generation: weights from the checkpoint, moments zero.

    `slot` holds one record at a time, and its fp32 weights while they are converted. Adapters
    begin with random values that follow from the `seed`. Raises Interrupted between records when
    `poll` asks to stop.
    """
    tenth = max(1, len(spec.records) // 10)
    with open_source(model_dir, without_adapters(spec)) as source:
        for i, layout in enumerate(spec.records):
            go_on(poll)
            record = store.records[layout.name]
            clear_state(slot, record)
            if spec.lora is not None and layout.kind == "beside":
                write_weights(state_views(slot, record), initial_adapter(layout, seed))
            elif layout.base is not None:
                _fill_frozen(source, layout, record, spec.head_dim, slot)
            else:
                _fill(source, layout, record, spec.head_dim, slot)
            store.write_from(layout.name, slot).result()
            if i % tenth == 0:
                done = {"records": i + 1, "total_records": len(spec.records)}
                emit(RunEvent(type="phase", message="importing the model", data=done))


def _fill(
    source: WeightSource, layout: RecordLayout, record: RecordSpec, head_dim: int, slot: HostSlot
) -> None:
    """Read a trained record's weights into the slot, where moments are zero and stay so."""
    state, room = state_views(slot, record), conversion_room(slot, record)
    for start, piece in split_record(layout, room.numel(), head_dim):
        flat = room[: piece.num_elements]
        source.read_record(piece, flat)
        write_weights(state, flat, start)
    room.zero_()


def _fill_frozen(
    source: WeightSource, layout: RecordLayout, record: RecordSpec, head_dim: int, slot: HostSlot
) -> None:
    frozen, room = frozen_views(slot, record), conversion_room(slot, record)
    for start, piece in frozen_pieces(layout, room.numel(), head_dim):
        flat = room[: piece.num_elements]
        source.read_record(piece, flat)
        write_frozen(layout, frozen, flat, start)


def conversion_room(slot: HostSlot, record: RecordSpec) -> Tensor:
    """fp32 memory, 1-D, behind a record's weights in a slot: where the slot has moments.

    They are written after the weights and not read by an export, so converting takes no memory
    that the plan does not count.
    """
    end = max(stop for _, stop in record.runs(weight_names(record, "float32")))
    return slot.tensor(torch.float32, (slot.nbytes - end) // 4, end)


def stored_pieces(
    store: TensorStore, layout: RecordLayout, slot: HostSlot, unit_rows: int
) -> Iterator[tuple[ParamSpec, Tensor]]:
    """A trained record's parameters in pieces of whole rows, with their fp32 values (1-D), each
    valid until the next one is asked for."""
    record = store.records[layout.name]
    store.read_into(layout.name, slot, tensors=weight_names(record, "float32")).result()
    state, room = state_views(slot, record), conversion_room(slot, record)
    for start, piece in split_record(layout, room.numel(), unit_rows):
        flat = room[: piece.num_elements]
        read_weights(state, flat, start)
        yield piece.params[0], flat
