"""Weights are converted between checkpoint and store without memory of their own."""

import torch

from headrace.engine.shapes import shape_spec
from headrace.engine.state import WEIGHTS, state_record
from headrace.engine.weights import conversion_room
from headrace.storage import HostArena


def test_converting_takes_room_of_the_slot_that_no_weights_lie_in() -> None:
    spec = shape_spec("tiny", layers=2)
    records = [state_record(layout) for layout in spec.records]
    slot_bytes = max(record.padded_bytes for record in records)
    with HostArena(slot_bytes) as arena:
        slot = arena.carve(slot_bytes)
        room = conversion_room(spec, slot)
        start = room.data_ptr() - slot.tensor(torch.uint8, 1).data_ptr()
        assert start + room.nbytes <= slot.nbytes
        for layout, record in zip(spec.records, records, strict=True):
            weights_end = max(stop for _, stop in record.runs(WEIGHTS))
            assert weights_end <= start and layout.num_elements <= len(room)
