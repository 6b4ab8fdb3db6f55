"""The tiered tensor store: bytes by name, on NVMe, in pinned host memory and on the device.

The public names are imported on first use, so that the pure ones cost no torch import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    Corrupt,
    Incompatible,
    IoFailed,
    IoTimeout,
    Locked,
    Misuse,
    NoSpace,
    NotCommitted,
    StoreError,
)
from .record import DTYPE_BYTES, PAGE_BYTES, RecordSpec, TensorSpec, round_up

if TYPE_CHECKING:
    from .config import VolumeConfig
    from .future import IoFuture
    from .layout import Layout, plan_layout
    from .pool import DeviceSlab, DeviceSlot, HostArena, HostSlot
    from .stats import LinkStats, StorageStatus, StoreStats
    from .store import CommitInfo, TensorStore
    from .transfer import Fence, Transfer
    from .volume import VolumeStatus, probe_volume

_HOMES = {
    "Layout": "layout",
    "VolumeConfig": "config",
    "plan_layout": "layout",
    "DeviceSlab": "pool",
    "DeviceSlot": "pool",
    "HostArena": "pool",
    "HostSlot": "pool",
    "LinkStats": "stats",
    "StorageStatus": "stats",
    "StoreStats": "stats",
    "CommitInfo": "store",
    "IoFuture": "future",
    "TensorStore": "store",
    "Fence": "transfer",
    "Transfer": "transfer",
    "VolumeStatus": "volume",
    "probe_volume": "volume",
}

__all__ = [
    "Corrupt",
    "CommitInfo",
    "DTYPE_BYTES",
    "DeviceSlab",
    "DeviceSlot",
    "Fence",
    "HostArena",
    "HostSlot",
    "Incompatible",
    "IoFailed",
    "IoFuture",
    "IoTimeout",
    "Layout",
    "LinkStats",
    "Locked",
    "Misuse",
    "NoSpace",
    "NotCommitted",
    "PAGE_BYTES",
    "RecordSpec",
    "StorageStatus",
    "StoreError",
    "StoreStats",
    "TensorSpec",
    "TensorStore",
    "Transfer",
    "VolumeConfig",
    "VolumeStatus",
    "plan_layout",
    "probe_volume",
    "round_up",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"headrace.storage has no public name {name!r}")
