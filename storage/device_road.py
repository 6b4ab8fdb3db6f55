"""Measuring the way to a GPU: drive, pinned slots, copy lanes; and each half of it alone."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from .bench import DriveBench, LoadCase
from .config import VolumeConfig
from .gds_probe import kvikio_rate
from .layout import BLOCK_BYTES, MIB
from .pool import HostArena
from .record import RecordSpec, TensorSpec
from .slab import DeviceSlab, DeviceSlot
from .slot import HostSlot
from .store import TensorStore
from .transfer import Fence, Transfer

FLOOR = 0.90  # of the slower of drive and copy
_NUM_RECORDS = 16
_RECORD_BYTES = 128 * MIB
_NUM_SLOTS = 3
_TOTAL_BYTES = _NUM_RECORDS * _RECORD_BYTES
_STORE = "headrace-bench-road"


@dataclass(slots=True)
class _Place:
    """A pinned slot and its twin on the device."""

    host: HostSlot
    device: DeviceSlot
    copied: Fence

    def up(self, transfer: Transfer) -> None:
        """Start the copy."""
        source = self.host.tensor(torch.uint8, _RECORD_BYTES)
        self.copied = transfer.to_device(source, self.device.tensor(torch.uint8, _RECORD_BYTES))


def measure_device_road(config: VolumeConfig, *, rounds: int) -> dict[str, Any]:
    """Rates of the drive alone, the copy alone, both as the store does it, and kvikio's.

    All in bytes a second, rounds interleaved. Records pass through the store, checksums included.
    Raises StoreError for a volume that cannot be used.
    """
    records = [
        RecordSpec(
            name=f"record.{i}",
            tensors=(TensorSpec(name="weights", dtype="uint8", shape=(_RECORD_BYTES,)),),
            mutable=False,
        )
        for i in range(_NUM_RECORDS)
    ]
    rates: dict[str, list[float]] = {"drive": [], "copy": [], "road": []}
    case = LoadCase(kind="read", block_bytes=BLOCK_BYTES, depth=4)
    TensorStore.remove([config], name=_STORE)
    try:
        with (
            DriveBench(config, file_bytes=_TOTAL_BYTES, arena_bytes=4 * BLOCK_BYTES) as bench,
            HostArena(_NUM_SLOTS * _RECORD_BYTES, pin=True) as arena,
            TensorStore.create([config], records, name=_STORE) as store,
            Transfer(torch.device("cuda")) as transfer,
        ):
            places = _places(arena, transfer)
            _fill(store, places[0].host)
            for _ in range(rounds):
                rates["drive"].append(bench.run(case, _TOTAL_BYTES).bytes_per_second)
                rates["copy"].append(_rate(lambda: _copy(transfer, places)))
                rates["road"].append(_rate(lambda: _road(store, transfer, places)))
            kvikio = kvikio_rate(bench.path, _TOTAL_BYTES)
    finally:
        TensorStore.remove([config], name=_STORE)
    return _result(rates, kvikio)


def _places(arena: HostArena, transfer: Transfer) -> list[_Place]:
    slab = DeviceSlab(_NUM_SLOTS * _RECORD_BYTES, torch.device("cuda"))
    return [
        _Place(arena.carve(_RECORD_BYTES), slab.carve(_RECORD_BYTES), transfer.fence())
        for _ in range(_NUM_SLOTS)
    ]


def _fill(store: TensorStore, slot: HostSlot) -> None:
    slot.tensor(torch.uint8, _RECORD_BYTES).random_(0, 256)
    store.begin(0)
    for name in store.records:
        store.write_from(name, slot).result()
    store.commit({})


def _rate(move: Any) -> float:
    start = time.monotonic()
    move()
    return _TOTAL_BYTES / (time.monotonic() - start)


def _copy(transfer: Transfer, places: Sequence[_Place]) -> None:
    for i in range(_NUM_RECORDS):
        places[i % len(places)].up(transfer)
    for place in places:
        place.copied.wait()


def _road(store: TensorStore, transfer: Transfer, places: Sequence[_Place]) -> None:
    """Two reads are ahead while a copy is under way: the ring of the engine, without compute."""
    names = list(store.records)
    reads = []
    for i in range(len(names) + 2):
        if i < len(names):
            place = places[i % len(places)]
            place.copied.wait()
            reads.append(store.read_into(names[i], place.host))
        if i >= 2:
            reads[i - 2].result()
            places[(i - 2) % len(places)].up(transfer)
    for place in places:
        place.copied.wait()


def _result(rates: dict[str, list[float]], kvikio: dict[str, Any]) -> dict[str, Any]:
    pairs = zip(rates["road"], rates["drive"], rates["copy"], strict=True)
    ratio = median(road / min(drive, copy) for road, drive, copy in pairs)
    medians = {name: median(values) for name, values in rates.items()}
    shown = ", ".join(f"{name} {rate / 1e9:.2f}" for name, rate in medians.items())
    return {
        "holds": ratio >= FLOOR,
        "ratio_to_slower_half": ratio,
        "median_bytes_per_second": medians,
        "rounds": rates,
        "kvikio": kvikio,
        "sentence": f"to the device, GB/s: {shown}; {ratio:.2f} of the slower half; "
        f"kvikio: {kvikio['sentence']}",
    }
