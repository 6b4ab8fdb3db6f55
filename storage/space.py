"""Whether a new store fits on its volumes, and where its records go."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .config import VolumeConfig
from .errors import NoSpace
from .files import DATA_NAME, refuse_same_directory
from .filesystem import free_bytes, total_bytes
from .layout import MIB, STRIPE_BYTES, Layout, plan_layout
from .rates import known_rate
from .record import RecordSpec, TensorSpec
from .shares import deal_of, shares_of

_LEAST_RESERVE_BYTES = 2 << 30
_RESERVE_SHARE = 20  # a twentieth of the file system
_FILL_SHARE = 0.98  # stripes are whole: a volume that is filled may get a little more than its part


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeRoom:
    """What a volume has for a new store: sizes in bytes, its speed in bytes a second.

    Volumes with the same `device` share its free bytes; None: a device of its own. `limit_bytes`
    bounds all stores of the volume together, which take `taken_bytes` now.
    """

    path: str
    free_bytes: int
    device: int | None = None
    reserve_bytes: int = 0  # stays free on the device
    limit_bytes: int | None = None
    taken_bytes: int = 0
    bytes_per_second: float | None = None  # as calibrated; None: not known


def measure_rooms(
    volumes: Sequence[VolumeConfig], *, reserve_bytes: int | None = None
) -> list[VolumeRoom]:
    """Look at the volumes as they are now; one that does not exist yet counts with its parent.

    `reserve_bytes` stays free on each file system; None: 2 GiB or 5 % of it, the larger.
    StoreError for volumes that are one directory.
    """
    refuse_same_directory(volumes)
    return [_measure(volume, reserve_bytes) for volume in volumes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overpromise:
    """Limits that add up to more than their drive has: stores of these volumes may still take
    `promised_bytes`, and `free_bytes`, less `reserve_bytes`, is all that there is."""

    paths: tuple[str, ...]
    promised_bytes: int
    free_bytes: int
    reserve_bytes: int

    def __str__(self) -> str:
        who, limit = f"volume {self.paths[0]}", "its limit"
        if len(self.paths) > 1:
            who, limit = f"volumes {', '.join(self.paths)} (one drive)", "their limits"
        return (
            f"{who} may take {_shown(self.promised_bytes)} more by {limit}, but "
            f"{_shown(self.free_bytes)} are free on the drive, {_shown(self.reserve_bytes)} of "
            f"them kept in reserve; plans go by what is there"
        )


def find_overpromises(rooms: Sequence[VolumeRoom]) -> list[Overpromise]:
    """The drives whose volumes have limits beyond what is free there, one entry a drive."""
    found = []
    for device in dict.fromkeys(map(_device, rooms)):
        here = [room for room in rooms if _device(room) == device and room.limit_bytes is not None]
        promised = sum(max(0, (room.limit_bytes or 0) - room.taken_bytes) for room in here)
        free = min((room.free_bytes for room in here), default=0)
        reserve = max((room.reserve_bytes for room in here), default=0)
        if promised > max(0, free - reserve):
            paths = tuple(room.path for room in here)
            found.append(Overpromise(paths=paths, promised_bytes=promised, free_bytes=free,
                                     reserve_bytes=reserve))  # fmt: skip
    return found


def fit_store(
    rooms: Sequence[VolumeRoom],
    records: Sequence[RecordSpec],
    *,
    stripe_bytes: int = STRIPE_BYTES,
    keep_generations: int = 0,
    scratch_bytes: int = 0,
) -> Layout:
    """The layout of a new store in these rooms; NoSpace, with the numbers, when it does not fit.

    Pure, and asked by `TensorStore.create` too: what fits here is created as long as the volumes
    stay as they are. Stripes go by known speeds when all volumes have one, else evenly, and never
    more to a volume than it can hold. `scratch_bytes` must fit beside the store.
    """
    even = plan_layout(records, rooms, stripe_bytes=stripe_bytes, keep_generations=keep_generations)
    layout = even
    if len(rooms) > 1:
        head = even.body_offset(2)  # on every volume, however small its share
        free = [int(_FILL_SHARE * (one - head)) for one in _capacities(rooms)]
        rates = [room.bytes_per_second for room in rooms]
        wanted = even.total_bytes - head * len(rooms) + scratch_bytes
        deal = deal_of(shares_of(rates, free, wanted))
        layout = plan_layout(
            records, rooms, stripe_bytes=stripe_bytes, keep_generations=keep_generations, deal=deal
        )
    scratch = scratch_layout(layout, scratch_bytes).file_bytes if scratch_bytes else None
    beside = scratch or [0] * len(rooms)
    check_space(rooms, [a + b for a, b in zip(layout.file_bytes, beside, strict=True)])
    return layout


def scratch_layout(store: Layout, num_bytes: int) -> Layout:
    """Where `num_bytes` of scratch beside a store lie: one record, striped as the store is."""
    whole = TensorSpec(name="bytes", dtype="uint8", shape=(num_bytes,))
    return plan_layout(
        [RecordSpec(name="scratch", tensors=(whole,), mutable=False)],
        store.file_bytes,
        stripe_bytes=store.stripe_bytes,
        deal=store.deal,
    )


def _measure(volume: VolumeConfig, reserve_bytes: int | None) -> VolumeRoom:
    home = volume.path
    while not home.exists():
        home = home.parent
    if reserve_bytes is None:
        reserve_bytes = max(_LEAST_RESERVE_BYTES, total_bytes(home) // _RESERVE_SHARE)
    return VolumeRoom(
        path=str(volume.path),
        free_bytes=free_bytes(home),
        device=os.stat(home).st_dev,
        reserve_bytes=reserve_bytes,
        limit_bytes=volume.limit_bytes,
        taken_bytes=_bytes_of_stores(volume.path),
        bytes_per_second=known_rate(volume),
    )


def _capacities(rooms: Sequence[VolumeRoom]) -> list[int]:
    """Bytes that a new store may take on each volume; two on one device have half of it each."""
    on_device = Counter(_device(room) for room in rooms)
    found = []
    for room in rooms:
        capacity = (room.free_bytes - room.reserve_bytes) // on_device[_device(room)]
        if room.limit_bytes is not None:
            capacity = min(capacity, room.limit_bytes - room.taken_bytes)
        found.append(max(0, capacity))
    return found


def check_space(rooms: Sequence[VolumeRoom], file_bytes: Sequence[int]) -> None:
    """Raise NoSpace, with the numbers, when files of these sizes do not fit, one a volume."""
    wanted_on_device: Counter[int | str] = Counter()
    for room, wanted in zip(rooms, file_bytes, strict=True):
        _check_limit(room, wanted)
        wanted_on_device[_device(room)] += wanted
        in_all = wanted_on_device[_device(room)]
        if in_all + room.reserve_bytes > room.free_bytes:
            raise NoSpace(
                f"volume {room.path}: {_at_least(in_all)} are needed and "
                f"{_at_least(room.reserve_bytes)} kept in reserve, but only "
                f"{_at_most(room.free_bytes)} are free; free space or add a volume"
            )


def _check_limit(room: VolumeRoom, wanted: int) -> None:
    if room.limit_bytes is not None and room.taken_bytes + wanted > room.limit_bytes:
        raise NoSpace(
            f"volume {room.path}: {_at_least(wanted)} are needed and {_at_least(room.taken_bytes)} "
            f"are taken by stores that are there, of a limit of {_at_most(room.limit_bytes)}; "
            "raise the limit, remove a store, or add a volume"
        )


def _at_least(num_bytes: int) -> str:
    """A size in MiB, as plans tell them, that is no less; small ones in bytes."""
    is_small = 0 < num_bytes < MIB
    return f"{num_bytes} bytes" if is_small else f"{-(-num_bytes // MIB)} MiB"


def _at_most(num_bytes: int) -> str:
    """A size in MiB that is no more."""
    return f"{num_bytes} bytes" if 0 < num_bytes < MIB else f"{num_bytes // MIB} MiB"


def _shown(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"


def _device(room: VolumeRoom) -> int | str:
    return room.path if room.device is None else room.device


def _bytes_of_stores(path: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in path.glob(f"*/{DATA_NAME}"))
