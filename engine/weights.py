"""Weights between a checkpoint and the store, one record at a time."""

from pathlib import Path

import torch
from torch import Tensor

from headrace.storage import HostSlot, TensorStore

from .config import ExportDtype
from .export import export_checkpoint
from .model import ModelSpec, RecordLayout
from .report import Emit, RunEvent
from .source import source_dtype
from .state import WEIGHTS, join_master, split_master, state_record, state_views
from .weight_source import open_source


def import_state(
    model_dir: Path, spec: ModelSpec, store: TensorStore, slot: HostSlot, emit: Emit
) -> None:
    """Fill the store's working generation: masters from the checkpoint, moments zero.

    `slot` holds one record at a time, and its fp32 weights while they are converted.
    """
    master = conversion_room(spec, slot)
    tenth = max(1, len(spec.records) // 10)
    with open_source(model_dir, spec) as source:
        for i, layout in enumerate(spec.records):
            flat = master[: layout.num_elements]
            source.read_record(layout, flat)
            write_master(store, layout, slot, flat)
            if i % tenth == 0:
                done = {"records": i + 1, "total_records": len(spec.records)}
                emit(RunEvent(type="phase", message="importing the model", data=done))


def write_master(store: TensorStore, layout: RecordLayout, slot: HostSlot, master: Tensor) -> None:
    """Write a record from its fp32 master (1-D, the components' length), with zero moments.

    The master may lie in the slot itself, in its `conversion_room`.
    """
    views = state_views(slot, state_record(layout))
    split_master(master, views.hi, views.lo)
    views.exp_avg.zero_()
    views.exp_avg_sq.zero_()
    store.write_from(layout.name, slot).result()


def read_master(store: TensorStore, layout: RecordLayout, slot: HostSlot, target: Tensor) -> None:
    """Read a record's fp32 master (1-D, the components' length) from the store."""
    store.read_into(layout.name, slot, tensors=WEIGHTS).result()
    views = state_views(slot, state_record(layout))
    join_master(views.hi, views.lo, target)


def conversion_room(spec: ModelSpec, slot: HostSlot) -> Tensor:
    """fp32 memory for the weights of any record, 1-D, in a slot that holds the largest one.

    It is where the largest record has `exp_avg`: behind the weights of every record, and unused
    until moments are written. So converting takes no memory that the plan does not count.
    """
    largest = max(spec.records, key=lambda layout: layout.num_elements)
    offset = state_record(largest).offset("exp_avg")
    return slot.tensor(torch.float32, largest.num_elements, offset)


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

    def read_record(layout: RecordLayout, target: Tensor) -> None:
        read_master(store, layout, slot, target)

    export_checkpoint(
        target_dir,
        spec,
        assets_dir=assets_dir,
        dtype=source_dtype(model_dir) if dtype == "auto" else dtype,
        read_record=read_record,
        scratch=conversion_room(spec, slot),
    )
