"""Weights are converted between checkpoint and store without memory of their own."""

from typing import get_args

import pytest
import torch

from headrace.engine.config import StateFormat
from headrace.engine.pieces import split_record
from headrace.engine.shapes import shape_spec
from headrace.engine.state import state_record, weight_names
from headrace.engine.weights import conversion_room
from headrace.storage import HostArena


@pytest.mark.parametrize("state_format", get_args(StateFormat))
def test_converting_takes_room_of_the_slot_that_no_weights_lie_in(
    state_format: StateFormat,
) -> None:
    spec = shape_spec("tiny", layers=2)
    records = [state_record(layout, state_format) for layout in spec.records]
    slot_bytes = max(record.padded_bytes for record in records)
    with HostArena(slot_bytes) as arena:
        slot = arena.carve(slot_bytes)
        for layout, record in zip(spec.records, records, strict=True):
            room = conversion_room(slot, record)
            start = room.data_ptr() - slot.tensor(torch.uint8, 1).data_ptr()
            assert start + room.nbytes <= slot.nbytes
            names = weight_names(record, "float32")
            assert max(stop for _, stop in record.runs(names)) <= start
            pieces = list(split_record(layout, room.numel(), spec.head_dim))
            assert all(piece.num_elements <= room.numel() for _, piece in pieces)
            assert sum(piece.num_params for _, piece in pieces) == layout.num_params
            del room


def test_pieces_of_a_record_are_whole_groups_of_rows_in_their_places() -> None:
    spec = shape_spec("tiny", layers=1)
    (layout,) = spec.of_kind("layer")
    unit = spec.head_dim
    for param in layout.params:
        own = [
            (start, piece.params[0])
            for start, piece in split_record(layout, 100_000, unit)
            if piece.params[0].name == param.name
        ]
        columns = param.num_elements // param.shape[0]
        rows = 0
        for start, piece in own:
            assert piece.row_start == rows and start == param.offset + rows * columns
            assert len(piece.shape) == 1 or piece.shape[0] % unit == 0
            rows += piece.shape[0]
        assert rows == param.shape[0]
