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
    WriteBudgetSpent,
)
from .record import DTYPE_BYTES, PAGE_BYTES, RecordSpec, TensorSpec, round_up

if TYPE_CHECKING:
    from .atomic_file import file_sha256, replace_file, whole_file
    from .bench import DriveBench, LoadCase, busy_python
    from .calibrate import calibrate_volume
    from .cgroup import GroupMemory, cpu_quota, tightest_group
    from .config import VolumeConfig, parse_bytes
    from .device_road import measure_device_road
    from .extras import install_line
    from .figures import UNFIT, check_figures
    from .files import refuse_same_directory
    from .filesystem import sync_directory
    from .fsck import FoundCommit, StoreReport, fall_back, find_commits
    from .future import IoFuture
    from .gds_probe import GdsStatus, probe_gds
    from .held_up import BUSY_SHARE, HeldUp, busy_words
    from .layout import Layout, plan_layout
    from .ledger import CommitInfo, KeptCommit
    from .memory import MemoryStatus, memory_status
    from .pool import HostArena
    from .rates import Calibration, read_calibration, write_calibration
    from .scratch import Scratch
    from .slab import DeviceSlab, DeviceSlot
    from .slot import HostSlot
    from .space import VolumeRoom, find_overpromises, fit_store, measure_rooms
    from .stats import LinkStats, StorageStatus, StoreStats
    from .store import TensorStore
    from .transfer import Fence, Mark, Transfer
    from .volume import VolumeStatus, probe_volume
    from .wear import DriveHealth, VolumeWear, drive_health

_HOMES = {
    "GroupMemory": "cgroup",
    "cpu_quota": "cgroup",
    "tightest_group": "cgroup",
    "MemoryStatus": "memory",
    "memory_status": "memory",
    "DriveHealth": "wear",
    "VolumeWear": "wear",
    "drive_health": "wear",
    "measure_device_road": "device_road",
    "GdsStatus": "gds_probe",
    "probe_gds": "gds_probe",
    "DriveBench": "bench",
    "LoadCase": "bench",
    "busy_python": "bench",
    "Layout": "layout",
    "VolumeConfig": "config",
    "parse_bytes": "config",
    "plan_layout": "layout",
    "Calibration": "rates",
    "calibrate_volume": "calibrate",
    "read_calibration": "rates",
    "write_calibration": "rates",
    "Scratch": "scratch",
    "DeviceSlab": "slab",
    "DeviceSlot": "slab",
    "BUSY_SHARE": "held_up",
    "HeldUp": "held_up",
    "busy_words": "held_up",
    "HostArena": "pool",
    "HostSlot": "slot",
    "VolumeRoom": "space",
    "find_overpromises": "space",
    "fit_store": "space",
    "install_line": "extras",
    "file_sha256": "atomic_file",
    "replace_file": "atomic_file",
    "whole_file": "atomic_file",
    "UNFIT": "figures",
    "check_figures": "figures",
    "sync_directory": "filesystem",
    "measure_rooms": "space",
    "refuse_same_directory": "files",
    "LinkStats": "stats",
    "StorageStatus": "stats",
    "StoreStats": "stats",
    "CommitInfo": "ledger",
    "KeptCommit": "ledger",
    "IoFuture": "future",
    "TensorStore": "store",
    "FoundCommit": "fsck",
    "StoreReport": "fsck",
    "fall_back": "fsck",
    "find_commits": "fsck",
    "Fence": "transfer",
    "Mark": "transfer",
    "Transfer": "transfer",
    "VolumeStatus": "volume",
    "probe_volume": "volume",
}

__all__ = [
    "BUSY_SHARE",
    "Calibration",
    "Corrupt",
    "CommitInfo",
    "DTYPE_BYTES",
    "DeviceSlab",
    "DeviceSlot",
    "DriveBench",
    "DriveHealth",
    "Fence",
    "FoundCommit",
    "GdsStatus",
    "GroupMemory",
    "HeldUp",
    "HostArena",
    "HostSlot",
    "Incompatible",
    "IoFailed",
    "IoFuture",
    "IoTimeout",
    "KeptCommit",
    "Layout",
    "LinkStats",
    "LoadCase",
    "Locked",
    "Mark",
    "MemoryStatus",
    "Misuse",
    "NoSpace",
    "NotCommitted",
    "PAGE_BYTES",
    "RecordSpec",
    "Scratch",
    "StorageStatus",
    "StoreError",
    "StoreReport",
    "StoreStats",
    "TensorSpec",
    "TensorStore",
    "Transfer",
    "UNFIT",
    "VolumeConfig",
    "VolumeRoom",
    "VolumeStatus",
    "VolumeWear",
    "WriteBudgetSpent",
    "busy_python",
    "busy_words",
    "calibrate_volume",
    "check_figures",
    "cpu_quota",
    "drive_health",
    "fall_back",
    "file_sha256",
    "find_commits",
    "find_overpromises",
    "fit_store",
    "install_line",
    "measure_rooms",
    "refuse_same_directory",
    "memory_status",
    "measure_device_road",
    "parse_bytes",
    "plan_layout",
    "probe_gds",
    "probe_volume",
    "read_calibration",
    "replace_file",
    "write_calibration",
    "round_up",
    "sync_directory",
    "tightest_group",
    "whole_file",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"headrace.storage has no public name {name!r}")
