"""Small stores for tests: records of a few pages, and content that tells where it belongs."""

from collections.abc import Sequence
from pathlib import Path

import torch

from headrace.storage import HostSlot, RecordSpec, TensorSpec, TensorStore, VolumeConfig


def small_records(count: int, *, num_elements: int = 3000) -> list[RecordSpec]:
    """Records `layers.i` with an int16 and a float32 tensor that do not fill their last page."""
    return [
        RecordSpec(
            name=f"layers.{i}",
            tensors=(
                TensorSpec(name="weight_hi", dtype="int16", shape=(num_elements,)),
                TensorSpec(name="exp_avg", dtype="float32", shape=(num_elements // 3, 3)),
            ),
        )
        for i in range(count)
    ]


def volumes_in(tmp_path: Path, count: int = 1) -> list[VolumeConfig]:
    """Volumes in fresh directories `drive0` …"""
    paths = [tmp_path / f"drive{i}" for i in range(count)]
    for path in paths:
        path.mkdir(exist_ok=True)
    return [VolumeConfig(path=path) for path in paths]


def fill(slot: HostSlot, record: RecordSpec, value: int) -> None:
    """Fill the slot with content that is different for every record and value."""
    seed = sum(record.name.encode()) * 1000 + value
    noise = torch.Generator().manual_seed(seed)
    whole = slot.tensor(torch.uint8, record.padded_bytes)
    whole.copy_(torch.randint(0, 256, whole.shape, generator=noise, dtype=torch.uint8))


def payload(slot: HostSlot, record: RecordSpec, names: Sequence[str] | None = None) -> bytes:
    """The payload of the named tensors (all when None), as the slot holds it."""
    parts = []
    for tensor in record.tensors:
        if names is None or tensor.name in names:
            start = record.offset(tensor.name)
            parts.append(bytes(slot.view[start : start + tensor.payload_bytes]))
    return b"".join(parts)


def write_all(store: TensorStore, slot: HostSlot, value: int) -> None:
    """Write every record with the content of `value`, one after the other."""
    for record in store.records.values():
        fill(slot, record, value)
        store.write_from(record.name, slot).result()


def content_of(store: TensorStore, slot: HostSlot, *, committed: bool = False) -> dict[str, bytes]:
    """The payload of every record."""
    content = {}
    for name, record in store.records.items():
        store.read_into(name, slot, committed=committed).result()
        content[name] = payload(slot, record)
    return content


def expected(records: Sequence[RecordSpec], slot: HostSlot, value: int) -> dict[str, bytes]:
    """What `content_of` finds after `write_all` with this value."""
    content = {}
    for record in records:
        fill(slot, record, value)
        content[record.name] = payload(slot, record)
    return content
