"""All volumes of one store together: their locks, files and threads, opened and closed as one."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .checksum import Spans
from .config import VolumeConfig
from .errors import Misuse, StoreError
from .files import (
    DATA_NAME,
    SCRATCH_NAME,
    check_header,
    create_files,
    new_manifests,
    open_nameless,
    read_manifests,
    remove_store,
    store_directories,
)
from .filesystem import free_bytes
from .future import Buffer, Patience
from .health import DriveLoad, DriveWarning, warnings_of
from .io_queue import IoQueue
from .layout import Layout
from .lock import StoreLock
from .manifest import Manifest
from .operation import Drive, Target
from .rates import known_rate
from .space import check_space, measure_rooms
from .stats import LinkMeter, StoreStats
from .throttle import Throttle
from .volume import OpenVolume, Volume, VolumeStatus, probe_volume
from .wear import VolumeWear, drive_health

log = logging.getLogger(__name__)

# Of a volume: with 4 a stream reached 0.84 of a virtual drive's mixed rate, with 8 0.99.
NUM_THREADS = 8
LINKS = ("nvme_read", "nvme_write")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenOptions:
    """How the files of a store are opened."""

    io_timeout_seconds: float
    open_volume: OpenVolume
    read_only: bool = False


class DriveSet:
    """The opened files of a store in the order of its volumes, and the threads that serve them."""

    def __init__(
        self,
        manifest: Manifest,
        lock: StoreLock,
        volumes: Sequence[VolumeConfig],
        statuses: Sequence[VolumeStatus],
        files: Sequence[Volume],
        options: OpenOptions,
    ) -> None:
        self.manifest = manifest
        self.layout: Layout = manifest.layout
        self.links = {link: LinkMeter() for link in LINKS}
        self._lock = lock
        self._statuses = statuses
        self._volumes = volumes
        self._open_volume = options.open_volume
        self._known_rates = [known_rate(volume) for volume in volumes]
        self._spans = [Spans.of(record) for record in self.layout.records]
        self.drives = [
            Drive(volume=file, queue=self._queue(volume))
            for volume, file in zip(volumes, files, strict=True)
        ]
        self.patience = Patience(
            timeout_seconds=options.io_timeout_seconds, hung_seconds=self._hung_seconds
        )

    def target(self, index: int, extent_index: int) -> Target:
        """One extent of record `index`, as operations want it."""
        return Target(
            layout=self.layout,
            drives=self.drives,
            record=self.layout.records[index],
            spans=self._spans[index],
            extent=self.layout.extents[index][extent_index],
        )

    def scratch_drives(self, layout: Layout, *, reserve_bytes: int | None) -> list[Drive]:
        """Reserve a file of scratch on each volume, served by the same threads. NoSpace."""
        check_space(measure_rooms(self._volumes, reserve_bytes=reserve_bytes), layout.file_bytes)
        found: list[Drive] = []
        try:
            for drive, status, size in zip(
                self.drives, self._statuses, layout.file_bytes, strict=True
            ):
                path = Path(status.path) / self.manifest.name / SCRATCH_NAME
                file = open_nameless(path, size, status, self._open_volume)
                found.append(Drive(volume=file, queue=drive.queue))
        except BaseException:
            for drive in found:
                drive.volume.close()
            raise
        return found

    def stats(self) -> StoreStats:
        """What was moved since the files were opened."""
        return StoreStats(
            links={link: meter.snapshot() for link, meter in self.links.items()},
            per_volume={
                drive.queue.name: {
                    link: meter.snapshot() for link, meter in drive.queue.meters.items()
                }
                for drive in self.drives
            },
        )

    def written_bytes(self) -> list[int]:
        """Bytes written on each volume since the files were opened."""
        totals = []
        for drive in self.drives:
            counted = drive.queue.meters["nvme_write"].snapshot()
            totals.append(counted.payload_bytes + counted.padding_bytes)
        return totals

    def statuses(self, written_bytes: Sequence[int]) -> list[VolumeStatus]:
        """What the probe found, with free space as of now and the bytes written in its life."""
        return [
            replace(
                status,
                free_bytes=free_bytes(Path(status.path)),
                written_bytes=written,
                share=self.layout.deal.count(i) / len(self.layout.deal),
                bytes_per_second=rate,
            )
            for i, (status, written, rate) in enumerate(
                zip(self._statuses, written_bytes, self._known_rates, strict=True)
            )
        ]

    def check_slot(self, slot: Buffer, record: str, wanted: int) -> None:
        """Raise Misuse for a slot that is in doubt, too small, or out of the volumes' reach.

        Only GDS, on every volume, reaches a slot on the device.
        """
        slot.check_usable()
        if slot.nbytes < wanted:
            raise Misuse(
                f"record {record!r} needs a slot of {wanted} bytes; this one has {slot.nbytes}"
            )
        if not slot.on_device:
            return
        for status in self._statuses:
            if not status.active.startswith("gds"):
                raise Misuse(
                    f"volume {status.path} cannot reach device memory ({status.active}: "
                    f"{status.why}); use a host slot and a copy"
                )

    def register_device(self, memory: Any) -> None:
        """Make device memory known to cuFile, where there is GDS; for the whole process at once."""
        for drive in self.drives[:1]:
            register = getattr(drive.volume, "register", None)
            if register is not None:
                register(memory)

    def log_roads(self, what: str) -> None:
        """Say once which road the bytes of each volume take, and why."""
        for volume in self._statuses:
            log.info(
                "store %s %s: volume %s, %s I/O (asked: %s): %s",
                self.manifest.name,
                what,
                volume.path,
                volume.active,
                volume.requested,
                volume.why,
            )

    def wear(self, written_bytes: Sequence[int]) -> list[VolumeWear]:
        """What was written to each drive in the life of the store, and how the drive is."""
        return [
            VolumeWear(
                path=status.path,
                store_written_bytes=written,
                health=drive_health(Path(status.path)),
            )
            for status, written in zip(self._statuses, written_bytes, strict=True)
        ]

    def warnings(self) -> list[DriveWarning]:
        """Drives that are slow or failing, in words."""
        loads = []
        for drive, rate in zip(self.drives, self._known_rates, strict=True):
            counts = [meter.snapshot() for meter in drive.queue.meters.values()]
            num_failed, last_error = drive.queue.failures()
            loads.append(
                DriveLoad(
                    path=drive.queue.name,
                    moved_bytes=sum(one.payload_bytes + one.padding_bytes for one in counts),
                    busy_seconds=sum(one.busy_seconds for one in counts),
                    known_rate=rate,
                    num_failed=num_failed,
                    last_error=last_error,
                )
            )
        return warnings_of(loads)

    def close(self, give_up: Callable[[], None] = lambda: None) -> None:
        """End the threads, then the files, then the lock.

        `give_up` is called when a call does not return; its file then stays open until it does.
        """
        ended = [drive.queue.close(self.patience.timeout_seconds) for drive in self.drives]
        if not all(ended):
            give_up()
        for drive, is_over in zip(self.drives, ended, strict=True):
            if is_over:
                drive.volume.close()
        self._lock.close()

    def _queue(self, volume: VolumeConfig) -> IoQueue:
        rate = volume.throttle_bytes_per_second
        return IoQueue(
            str(volume.path),
            num_threads=NUM_THREADS,
            meters={link: LinkMeter(parent) for link, parent in self.links.items()},
            throttle=None if rate is None else Throttle(rate),
        )

    def _hung_seconds(self) -> float:
        return max(drive.queue.hung_seconds() for drive in self.drives)


def create_drives(
    volumes: Sequence[VolumeConfig],
    place: Callable[[], Layout],
    options: OpenOptions,
    *,
    name: str,
    description: dict[str, object],
) -> DriveSet:
    """Reserve and open the files of a new store; whole, or nothing is left behind.

    `place` says where everything goes, or that it does not fit, once the volumes are known to be
    of use.
    """
    directories = store_directories(volumes, name)
    statuses = [probe_volume(volume) for volume in volumes]
    remove_store(directories, only_halves=True)
    layout = place()
    manifests = new_manifests(name, layout, description)
    lock, files = create_files(directories, manifests, statuses, options.open_volume)
    return DriveSet(manifests[0], lock, volumes, statuses, files, options)


def open_drives(volumes: Sequence[VolumeConfig], options: OpenOptions, *, name: str) -> DriveSet:
    """Lock and open the files of a store, whatever the order its volumes are given in."""
    directories = store_directories(volumes, name)
    read_manifests(directories)  # is there a store at all?
    lock = StoreLock(directories, shared=options.read_only)
    files: list[Volume] = []
    try:
        manifests = read_manifests(directories)
        order = sorted(range(len(volumes)), key=lambda i: manifests[i].volume_index)
        volumes = [volumes[i] for i in order]
        statuses = [probe_volume(volume, writable=not options.read_only) for volume in volumes]
        for i, status in zip(order, statuses, strict=True):
            path = directories[i] / DATA_NAME
            files.append(_open_file(path, status, options))
            check_header(files[-1], directories[i], manifests[i])
        return DriveSet(manifests[order[0]], lock, volumes, statuses, files, options)
    except BaseException:
        for file in files:
            file.close()
        lock.close()
        raise


def _open_file(path: Path, status: VolumeStatus, options: OpenOptions) -> Volume:
    try:
        return options.open_volume(status, path, options.read_only)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}") from error
