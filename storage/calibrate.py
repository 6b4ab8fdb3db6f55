"""Measuring what a volume can do. The figures stay on the volume (`rates.py`)."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from .config import VolumeConfig
from .errors import NoSpace
from .filesystem import free_bytes, total_bytes
from .held_up import HeldUp
from .layout import BLOCK_BYTES, MIB
from .load import LoadKind, LoadResult, run_load
from .pool import HostArena
from .rates import Calibration, write_calibration
from .throttle import Throttle
from .volume import Volume, open_file_volume, probe_volume
from .working_file import remove_leftovers, working_file

NUM_BUFFERS = 4
SECONDS = 5.0
FULL_SECONDS = 120.0
_REGION_BYTES = 1 << 30
_PART_BYTES = 2 << 30
_NO_LIMIT_BYTES = 1 << 62
_FULL_REGION_BYTES = 64 << 30
_FREE_SHARE = 0.5  # of what is free, at most, is written
_LEAST_REGION_BYTES = 2 * NUM_BUFFERS * BLOCK_BYTES

# The parts of the time: the first writes reserve and fill, the other three are figures.
_PARTS: tuple[tuple[LoadKind, float], ...] = (("write", 0.25), ("read", 0.25), ("mixed", 0.25))


PURPOSE = "calibrate"
Report = Callable[[str], None]  # hears which part is under way


def calibrate_volume(
    config: VolumeConfig, *, full: bool = False, report: Report = lambda part: None
) -> Calibration:
    """Measure a volume and keep the figures there, for layouts made from now on.

    Takes 5 s at most and writes 4 GiB at most; with `full` two minutes, in which it writes as much
    as the drive takes, over as much as half of the free space: sustained, past a write cache.
    Raises StoreError for a volume that cannot be used, NoSpace when too little is free.
    """
    status = probe_volume(config)
    remove_leftovers(config.path, PURPOSE)  # before the free space is looked at
    region = _region_bytes(config, full)
    start, watch = time.monotonic(), HeldUp()
    with working_file(config.path, PURPOSE, region) as path:
        volume = open_file_volume(status, path, False)
        try:
            results = _measure(volume, config, region, full, report)
        finally:
            volume.close()
    rates = {name: one.bytes_per_second for name, one in results.items()}
    calibration = Calibration(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        active=status.active,
        filesystem=status.filesystem,
        full=full,
        read_bytes_per_second=rates["read"],
        write_bytes_per_second=rates["write"],
        mixed_bytes_per_second=rates["mixed"],
        first_write_bytes_per_second=rates["first_write"],
        written_bytes=sum(one.written_bytes for one in results.values()),
        seconds=time.monotonic() - start,
        held_up=watch.share(),
    )
    write_calibration(config.path, calibration)
    return calibration


def _region_bytes(config: VolumeConfig, full: bool) -> int:
    free = free_bytes(config.path)
    if config.limit_bytes is not None:
        free = min(free, config.limit_bytes)
    region = min(_FULL_REGION_BYTES if full else _REGION_BYTES, int(free * _FREE_SHARE))
    region -= region % BLOCK_BYTES
    if region < _LEAST_REGION_BYTES:
        raise NoSpace(
            f"volume {config.path}: {free} of {total_bytes(config.path)} bytes are free; measuring "
            f"wants {int(_LEAST_REGION_BYTES / _FREE_SHARE)}. Free space or use another volume"
        )
    return region


def _measure(
    volume: Volume, config: VolumeConfig, region: int, full: bool, report: Report
) -> dict[str, LoadResult]:
    seconds = FULL_SECONDS if full else SECONDS
    rate = config.throttle_bytes_per_second
    results: dict[str, LoadResult] = {}
    with HostArena(NUM_BUFFERS * BLOCK_BYTES) as arena:
        buffers = [arena.carve(BLOCK_BYTES).view for _ in range(NUM_BUFFERS)]
        for buffer in buffers:
            buffer[:] = os.urandom(MIB) * (BLOCK_BYTES // MIB)  # a drive may compress zeros

        def load(kind: LoadKind, stop: int, part: float) -> LoadResult:
            result = run_load(
                volume,
                buffers,
                kind,
                region=(0, stop),
                num_bytes=_NO_LIMIT_BYTES if full else _PART_BYTES,
                limit_seconds=part * seconds,
                throttle=Throttle(rate) if rate else None,
            )
            if kind == "read":
                return result
            start = time.monotonic()
            volume.sync()  # what the drive still holds back counts as time of the load
            return replace(result, seconds=result.seconds + time.monotonic() - start)

        report("first write")
        results["first_write"] = run_load(
            volume,
            buffers,
            "write",
            region=(0, region),
            num_bytes=region,
            limit_seconds=0.25 * seconds,
            throttle=Throttle(rate) if rate else None,
        )
        volume.sync()
        written = results["first_write"].written_bytes
        for kind, part in _PARTS:
            report(kind)
            results[kind] = load(kind, written, part)
    return results
