"""Measuring what the store itself takes for a record: a read and a write of next to no bytes."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

from headrace.storage import HostArena, Locked, NoSpace, RecordSpec, TensorStore, VolumeConfig

from .box import known_rates

_NAME = "calibrate-calls"
_CALLS = 15  # of each, of which the middle one counts


def measure_calls(volume: VolumeConfig, record: RecordSpec) -> tuple[float, float]:
    """Seconds of a read and of a write of `record` through the store, beside those of its bytes.

    That is handing it from thread to thread, checksums and the trailer. The record should be a
    small one. Nothing, (0.0, 0.0), where the volume has no room for it, or where another process
    measures just now.
    """
    try:
        read, write = _time_calls(volume, record)
    except (Locked, NoSpace):
        return 0.0, 0.0
    drive = known_rates("cpu", [volume]).drives([str(volume.path)])
    size = record.padded_bytes
    return max(0.0, read - size / drive.read), max(0.0, write - size / drive.write)


def _time_calls(volume: VolumeConfig, record: RecordSpec) -> tuple[float, float]:
    """Seconds of a read and of a write. Locked where another process has the store in use."""
    TensorStore.remove([volume], name=_NAME)  # of a process that was killed here
    try:
        with (
            TensorStore.create([volume], [record], name=_NAME) as store,
            HostArena(record.padded_bytes) as arena,
        ):
            slot = arena.carve(record.padded_bytes)
            store.begin(0)
            write = _middle(lambda: store.write_from(record.name, slot).result())
            store.commit({})
            return _middle(lambda: store.read_into(record.name, slot).result()), write
    finally:
        TensorStore.remove([volume], name=_NAME)


def _middle(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_CALLS):
        started = perf_counter()
        call()
        times.append(perf_counter() - started)
    return median(times)
