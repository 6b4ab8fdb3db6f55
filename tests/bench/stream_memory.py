"""A store of many gigabytes, streamed end to end through a few slots: does memory stay put?

A fresh process imports the store, notes its resident memory, makes a store on the volume, writes
every record, reads and rewrites every record as a training step would, and commits. Resident memory
above that of after the import may not exceed the slots by more than 5 %. Prints one JSON object;
the exit status is 1 when it did.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.inputs import box
from bench.watch import memory, reset_peak
from headrace.storage import HostArena, HostSlot, RecordSpec, TensorSpec, TensorStore, VolumeConfig

MIB = 1 << 20
NUM_SLOTS = 4
ALLOWANCE = 1.05


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--volume", type=Path, required=True)
    parser.add_argument("--store-gb", type=float, default=20.0, help="payload of one version")
    parser.add_argument("--slots-mb", type=int, default=256, help="all slots together, 10^6 bytes")
    parser.add_argument("--mutable", action="store_true", help="rewritten, as in training")
    arguments = parser.parse_args()
    slots_bytes = arguments.slots_mb * 10**6
    result = measure(
        arguments.volume, int(arguments.store_gb * 1e9), slots_bytes, arguments.mutable
    )
    held = result["peak_above_import_bytes"] <= ALLOWANCE * slots_bytes
    print(json.dumps({"held": held, "slots_bytes": slots_bytes, **result, "box": box()}))
    return 0 if held else 1


def measure(volume: Path, store_bytes: int, slots_bytes: int, mutable: bool) -> dict[str, Any]:
    """Fill, read back, and (when mutable) rewrite the whole store through the slots."""
    slot_bytes = slots_bytes // NUM_SLOTS // 4096 * 4096
    payload = slot_bytes // MIB * MIB
    records = [
        RecordSpec(
            name=f"layers.{i}",
            tensors=(TensorSpec(name="state", dtype="uint8", shape=(payload,)),),
            mutable=mutable,
        )
        for i in range(-(-store_bytes // payload))
    ]
    base = memory()["VmRSS"]
    reset_peak()
    config = VolumeConfig(path=volume)
    TensorStore.remove([config], name="stream")
    start = time.monotonic()
    try:
        with (
            HostArena(NUM_SLOTS * slot_bytes) as arena,
            TensorStore.create([config], records, name="stream") as store,
        ):
            slots = [arena.carve(slot_bytes) for _ in range(NUM_SLOTS)]
            passes = [
                timed(lambda: write_pass(store, slots, 0)),
                timed(lambda: read_pass(store, slots)),
            ]
            if mutable:
                passes.append(timed(lambda: step_pass(store, slots)))
            peak = memory()["VmHWM"] - base
            links = {name: link.payload_bytes for name, link in store.stats().links.items()}
    finally:
        TensorStore.remove([config], name="stream")
    return {
        "store_bytes": len(records) * payload,
        "mutable": mutable,
        "peak_above_import_bytes": peak,
        "ratio_to_slots": peak / slots_bytes,
        "payload_bytes": links,
        "pass_seconds": passes,
        "seconds": time.monotonic() - start,
    }


def timed(work: Any) -> float:
    """Seconds that a pass takes."""
    start = time.monotonic()
    work()
    return time.monotonic() - start


def write_pass(store: TensorStore, slots: list[HostSlot], step: int) -> None:
    """Write every record, the slots in turn, and commit."""
    store.begin(step)
    writes: list[Any] = []
    for i, name in enumerate(store.records):
        if i >= len(slots):
            writes[i - len(slots)].result()
        slot = slots[i % len(slots)]
        slot.view[:8] = i.to_bytes(8, "little")
        writes.append(store.write_from(name, slot))
    store.commit({})


def read_pass(store: TensorStore, slots: list[HostSlot]) -> None:
    """Read every record back and look at what marks it."""
    reads: list[Any] = []
    for i, name in enumerate([*store.records, *[""] * len(slots)]):
        if i >= len(slots) and reads[i - len(slots)] is not None:
            reads[i - len(slots)].result()
            marked = int.from_bytes(slots[i % len(slots)].view[:8], "little")
            assert marked == i - len(slots), f"record {i - len(slots)} came back as {marked}"
        reads.append(store.read_into(name, slots[i % len(slots)]) if name else None)


def step_pass(store: TensorStore, slots: list[HostSlot]) -> None:
    """Read, change and write every record, two reads ahead, and commit."""
    names = list(store.records)
    store.begin(1)
    reads: dict[int, Any] = {}
    writes: dict[int, Any] = {}
    for i in range(len(names)):
        for ahead in range(i, min(i + 3, len(names))):
            if ahead not in reads:
                if ahead >= len(slots):
                    writes[ahead - len(slots)].result()
                reads[ahead] = store.read_into(names[ahead], slots[ahead % len(slots)])
        reads[i].result()
        writes[i] = store.write_from(names[i], slots[i % len(slots)])
    store.commit({})


if __name__ == "__main__":
    sys.exit(main())
