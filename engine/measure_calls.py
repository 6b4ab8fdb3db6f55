"""Measuring what the store itself takes for a record: reads and writes of one at a time."""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

from headrace.storage import (
    HostArena,
    Locked,
    NoSpace,
    RecordSpec,
    TensorSpec,
    TensorStore,
    VolumeConfig,
)

from .box import known_rates

_NAME = "calibrate-calls"
_MOST_BYTES = 2**24  # what the store reads or writes by one call; of more, the next is under way
# Calls of each kind, of which the middle one counts: of next to no bytes, and of a record's.
_CALLS = (15, 7)


def measure_calls(volume: VolumeConfig, records: Sequence[RecordSpec]) -> tuple[float, float]:
    """Seconds of a read and of a write through the store, beside those of the bytes alone.

    That is handing a record from thread to thread, its trailer, and its checksum, which is made
    while the drive has nothing to do: the more, the larger the record. So it is taken with next to
    no bytes and with as many as the largest of `records` has, up to 16 MiB, and the longer one
    counts. Nothing, (0.0, 0.0), where the volume has no room for it, or where another process
    measures just now.
    """
    largest = min(_MOST_BYTES, max(record.padded_bytes for record in records))
    sizes = (1, largest)
    try:
        times = _time_calls(volume, [_record(size) for size in sizes])
    except (Locked, NoSpace):
        return 0.0, 0.0
    drive = known_rates("cpu", [volume]).drives([str(volume.path)])
    reads = [read - size / drive.read for size, (read, _) in zip(sizes, times, strict=True)]
    writes = [write - size / drive.write for size, (_, write) in zip(sizes, times, strict=True)]
    return max(0.0, *reads), max(0.0, *writes)


def _record(num_bytes: int) -> RecordSpec:
    tensor = TensorSpec(name="bytes", dtype="uint8", shape=(num_bytes,))
    return RecordSpec(name=f"of-{num_bytes}", tensors=(tensor,))


def _time_calls(volume: VolumeConfig, records: Sequence[RecordSpec]) -> list[tuple[float, float]]:
    """Seconds of a read and of a write of each. Locked where another process has the store in
    use."""
    TensorStore.remove([volume], name=_NAME)  # of a process that was killed here
    try:
        with (
            TensorStore.create([volume], records, name=_NAME) as store,
            HostArena(records[-1].padded_bytes) as arena,
        ):
            slot = arena.carve(records[-1].padded_bytes)
            times = []
            store.begin(0)
            for record, calls in zip(records, _CALLS, strict=True):
                name = record.name
                write = _middle(lambda: store.write_from(name, slot).result(), calls)  # noqa: B023
                read = _middle(lambda: store.read_into(name, slot).result(), calls)  # noqa: B023
                times.append((read, write))
            return times
    finally:
        TensorStore.remove([volume], name=_NAME)


def _middle(call: Callable[[], object], calls: int) -> float:
    times = []
    for _ in range(calls):
        started = perf_counter()
        call()
        times.append(perf_counter() - started)
    return median(times)
