"""Whether a new store fits on its volumes, and where its records go."""

import os
from collections import Counter
from collections.abc import Sequence

from .config import VolumeConfig
from .errors import NoSpace
from .files import DATA_NAME
from .filesystem import free_bytes, total_bytes
from .layout import Layout, plan_layout
from .rates import known_rate
from .record import RecordSpec
from .shares import deal_of, shares_of

_LEAST_RESERVE_BYTES = 2 << 30
_RESERVE_SHARE = 20  # a twentieth of the file system
_FILL_SHARE = 0.98  # stripes are whole: a volume that is filled may get a little more than its part


def place_records(
    volumes: Sequence[VolumeConfig],
    records: Sequence[RecordSpec],
    *,
    stripe_bytes: int,
    keep_generations: int,
    reserve_bytes: int | None,
) -> Layout:
    """Lay records out over the volumes by what is known of them now.

    Stripes go by calibrated rates (`calibrate`) when all volumes have one, else evenly, and never
    more to a volume than it can hold.
    """
    even = plan_layout(
        records, volumes, stripe_bytes=stripe_bytes, keep_generations=keep_generations
    )
    if len(volumes) == 1:
        return even
    rates = [known_rate(volume) for volume in volumes]
    head = even.body_offset(2)  # on every volume, however small its share
    room = [int(_FILL_SHARE * (one - head)) for one in capacities(volumes, reserve_bytes)]
    deal = deal_of(shares_of(rates, room, even.total_bytes - head * len(volumes)))
    return plan_layout(
        records, volumes, stripe_bytes=stripe_bytes, keep_generations=keep_generations, deal=deal
    )


def capacities(volumes: Sequence[VolumeConfig], reserve_bytes: int | None) -> list[int]:
    """Bytes that a new store may take on each volume; two on one device have half of it each."""
    on_device = Counter(_device(volume) for volume in volumes)
    found = []
    for volume in volumes:
        room = free_bytes(volume.path) - _reserve(volume, reserve_bytes)
        room //= on_device[_device(volume)]
        if volume.limit_bytes is not None:
            room = min(room, volume.limit_bytes - _bytes_of_stores(volume))
        found.append(max(0, room))
    return found


def check_space(
    volumes: Sequence[VolumeConfig], file_bytes: Sequence[int], reserve_bytes: int | None
) -> None:
    """Raise NoSpace, with the numbers, when the files would not fit on their volumes.

    `reserve_bytes` stays free on each file system; None: 2 GiB or 5 % of it, the larger.
    """
    wanted_on_device: Counter[int] = Counter()
    for volume, wanted in zip(volumes, file_bytes, strict=True):
        _check_limit(volume, wanted)
        wanted_on_device[_device(volume)] += wanted
        in_all = wanted_on_device[_device(volume)]
        reserve, free = _reserve(volume, reserve_bytes), free_bytes(volume.path)
        if in_all + reserve > free:
            raise NoSpace(
                f"volume {volume.path}: {in_all} bytes are needed and {reserve} "
                f"kept in reserve, but only {free} are free; free space or add a volume"
            )


def _check_limit(volume: VolumeConfig, wanted: int) -> None:
    if volume.limit_bytes is None:
        return
    taken = _bytes_of_stores(volume)
    if taken + wanted > volume.limit_bytes:
        raise NoSpace(
            f"volume {volume.path}: the store needs {wanted} bytes and {taken} are taken "
            f"by other stores, of a limit of {volume.limit_bytes}; raise the limit, "
            "remove a store, or add a volume"
        )


def _reserve(volume: VolumeConfig, reserve_bytes: int | None) -> int:
    if reserve_bytes is not None:
        return reserve_bytes
    return max(_LEAST_RESERVE_BYTES, total_bytes(volume.path) // _RESERVE_SHARE)


def _device(volume: VolumeConfig) -> int:
    return os.stat(volume.path).st_dev


def _bytes_of_stores(volume: VolumeConfig) -> int:
    return sum(file.stat().st_blocks * 512 for file in volume.path.glob(f"*/{DATA_NAME}"))
