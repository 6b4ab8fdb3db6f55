"""What the links of this machine carry, measured in the run that is held against them."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from headrace.storage import DriveBench, LoadCase, VolumeConfig
from headrace.storage.load import LoadKind

MIB = 2**20
_COPY_BYTES = 1024 * MIB
_BLOCK_BYTES, _DEPTH = 16 * MIB, 8


def measure_copies(rounds: int = 5) -> dict[str, float]:
    """Bytes a second of pinned copies: up alone, down alone, and each way while both run."""
    cuda: Any = torch.cuda
    up, down = (torch.empty(_COPY_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    device = [torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [cuda.Stream() for _ in range(2)]
    pairs = [(device[0], up), (down, device[1])]

    def seconds(chosen: tuple[int, ...]) -> float:
        torch.cuda.synchronize()
        started = perf_counter()
        for i in chosen:
            target, source = pairs[i]
            with cuda.stream(streams[i]):
                target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        return perf_counter() - started

    ways = {"h2d": (0,), "d2h": (1,), "each_of_both": (0, 1)}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds + 1):
        for way, chosen in ways.items():
            times[way].append(seconds(chosen))
    return {way: _COPY_BYTES / median(found[1:]) for way, found in times.items()}


def copy_limit_seconds(up_bytes: float, down_bytes: float, rates: Mapping[str, float]) -> float:
    """The least time for these bytes over a link with these rates (of `measure_copies`).

    Both ways are busy until the shorter one is done; the rest passes alone.
    """
    together = min(up_bytes, down_bytes) / rates["each_of_both"]
    rest = max(up_bytes, down_bytes) - min(up_bytes, down_bytes)
    alone = rates["h2d"] if up_bytes > down_bytes else rates["d2h"]
    return together + rest / alone


@contextmanager
def loaded_drive(
    folder: Path | None = None, *, file_bytes: int = 2048 * MIB, num_bytes: int = 4096 * MIB
) -> Iterator[Callable[[LoadKind], float]]:
    """A file on the drive of `folder`, written whole, and what measures the drive within it.

    That moves `num_bytes` by the store's own road and gives the bytes a second of a kind: read,
    write, mixed (both in turn, counted together).
    """
    where = folder or Path(tempfile.gettempdir())
    arena = _BLOCK_BYTES * _DEPTH
    with DriveBench(
        VolumeConfig(path=where), file_bytes=max(file_bytes, arena), arena_bytes=arena
    ) as bench:

        def rate(kind: LoadKind) -> float:
            case = LoadCase(kind=kind, block_bytes=_BLOCK_BYTES, depth=_DEPTH)
            return bench.run(case, num_bytes).bytes_per_second

        yield rate
