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

    `slot` holds one record at a time; besides it, one fp32 copy of a record is held.
    """
    master = torch.empty(max(layout.num_elements for layout in spec.records))
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
    """Write a record from its fp32 master (1-D, the components' length), with zero moments."""
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
    """Write the store's weights as a Hugging Face directory; holds one record at a time.

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
        scratch=torch.empty(max(layout.num_elements for layout in spec.records)),
    )
