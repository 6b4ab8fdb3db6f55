"""The directory of a store on each volume: made whole or not at all, found again, removed."""

import os
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

from .checksum import hash_bytes
from .config import VolumeConfig
from .errors import Incompatible, Misuse, StoreError
from .filesystem import reserve_file, sync_directory
from .layout import HEADER_OFFSET, Layout
from .lock import LOCK_NAME, StoreLock
from .manifest import Manifest, decode_manifest, encode_manifest
from .record import PAGE_BYTES
from .superblock import Header, decode_header, encode_header
from .volume import OpenVolume, Volume, VolumeStatus, page_buffer

DATA_NAME = "data.bin"
MANIFEST_NAME = "manifest.json"
SCRATCH_NAME = "scratch.bin"
_HALF_MANIFEST_NAME = "manifest.json.new"


def store_directories(volumes: Sequence[VolumeConfig], name: str) -> list[Path]:
    """The store's directory on each volume.

    ValueError for a name that is no plain file name, StoreError for a directory given twice.
    """
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise ValueError(f"a store cannot be named {name!r}; wanted a plain name without '/'")
    refuse_same_directory(volumes)
    return [volume.path / name for volume in volumes]


def refuse_same_directory(volumes: Sequence[VolumeConfig]) -> None:
    """StoreError when two volumes are one directory, by whatever links: its room would count twice,
    and the second would find the first one's files."""
    found: dict[object, Path] = {}
    for path in (volume.path for volume in volumes):
        try:
            status = os.stat(path)
            key: object = (status.st_dev, status.st_ino)
        except FileNotFoundError:
            key = path.resolve()
        if key in found:
            raise StoreError(
                f"volumes {found[key]} and {path} are the same directory; give each drive once, "
                "and no directory twice"
            )
        found[key] = path


def store_exists(directories: Sequence[Path]) -> bool:
    """True when the store was made whole on every volume (committed or not)."""
    return bool(directories) and all((one / MANIFEST_NAME).exists() for one in directories)


def remove_store(directories: Sequence[Path], *, only_halves: bool = False) -> None:
    """Remove a store, or what is left of one; Locked while a process holds it.

    With `only_halves` a whole store raises Misuse instead.
    """
    if only_halves and store_exists(directories):
        raise Misuse(f"store {directories[0]} exists; open it, or remove it first")
    present = [directory for directory in directories if directory.is_dir()]
    lock = StoreLock(present, shared=False)
    try:
        for directory in present:
            _remove_files(directory)
    finally:
        lock.close()


def create_files(
    directories: Sequence[Path],
    manifests: Sequence[Manifest],
    statuses: Sequence[VolumeStatus],
    open_volume: OpenVolume,
) -> tuple[StoreLock, list[Volume]]:
    """Make the store on every volume and open its files; on a failure nothing is left behind."""
    for directory in directories:
        directory.mkdir(exist_ok=True)
    lock = StoreLock(directories, shared=False)
    opened: list[Volume] = []
    try:
        for directory, manifest, status in zip(directories, manifests, statuses, strict=True):
            opened.append(_create_file(directory, manifest, status, open_volume))
        for directory, manifest in zip(directories, manifests, strict=True):
            _write_manifest(directory, encode_manifest(manifest))
            sync_directory(directory.parent)
    except BaseException:
        for volume in opened:
            volume.close()
        for directory in directories:
            _remove_files(directory)
        lock.close()
        raise
    return lock, opened


def new_manifests(name: str, layout: Layout, description: dict[str, object]) -> list[Manifest]:
    """The manifests of a new store, one a volume."""
    uuid = uuid4()
    return [
        Manifest(uuid=uuid, name=name, volume_index=i, layout=layout, description=description)
        for i in range(layout.num_volumes)
    ]


def read_manifests(directories: Sequence[Path]) -> list[Manifest]:
    """Read the manifests; StoreError when one is missing, Incompatible when they do not match."""
    if not directories:
        raise StoreError("a store lies on at least one volume; none was given")
    manifests = []
    for directory in directories:
        path = directory / MANIFEST_NAME
        if not path.exists():
            raise StoreError(
                f"there is no store at {directory}; create it, or correct the volume or the name"
            )
        manifests.append(decode_manifest(path.read_bytes(), where=str(path)))
    first = manifests[0]
    if first.layout.num_volumes != len(manifests):
        raise Incompatible(
            f"store {first.name!r} lies on {first.layout.num_volumes} volumes; "
            f"{len(manifests)} are given"
        )
    indexes = sorted(manifest.volume_index for manifest in manifests)
    same = all((one.uuid, one.layout) == (first.uuid, first.layout) for one in manifests)
    if not same or indexes != list(range(len(manifests))):
        raise Incompatible(
            f"the volumes do not belong together: {', '.join(map(str, directories))}"
        )
    return manifests


def check_header(volume: Volume, directory: Path, manifest: Manifest) -> None:
    """Raise Incompatible unless the file is the one that the manifest beside it speaks of."""
    page = page_buffer(PAGE_BYTES)
    volume.read(HEADER_OFFSET, memoryview(page))
    found = decode_header(page[:], where=str(directory / DATA_NAME))
    if found != _header(manifest, (directory / MANIFEST_NAME).read_bytes()):
        raise Incompatible(
            f"{directory / DATA_NAME} and the manifest beside it are not of one store, "
            "or the manifest was changed"
        )


def open_nameless(
    path: Path, num_bytes: int, status: VolumeStatus, open_volume: OpenVolume
) -> Volume:
    """Reserve a file, open it and take its name away: however the process ends, the space is free.

    One left over by a process that died before that is removed. NoSpace, IoFailed.
    """
    path.unlink(missing_ok=True)
    reserve_file(path, num_bytes)
    try:
        return open_volume(status, path, False)
    finally:
        path.unlink()


def _header(manifest: Manifest, encoded: bytes) -> Header:
    return Header(
        uuid=manifest.uuid,
        volume_index=manifest.volume_index,
        num_volumes=manifest.layout.num_volumes,
        manifest_hash=hash_bytes(encoded),
    )


def _create_file(
    directory: Path, manifest: Manifest, status: VolumeStatus, open_volume: OpenVolume
) -> Volume:
    path = directory / DATA_NAME
    reserve_file(path, manifest.layout.file_bytes[manifest.volume_index])
    volume = open_volume(status, path, False)
    page = page_buffer(PAGE_BYTES)
    page[:PAGE_BYTES] = encode_header(_header(manifest, encode_manifest(manifest)))
    try:
        volume.write(HEADER_OFFSET, memoryview(page))
        volume.sync()
    except BaseException:
        volume.close()
        raise
    return volume


def _write_manifest(directory: Path, encoded: bytes) -> None:
    half = directory / _HALF_MANIFEST_NAME
    with half.open("wb") as file:
        file.write(encoded)
        file.flush()
        os.fsync(file.fileno())
    half.rename(directory / MANIFEST_NAME)
    sync_directory(directory)


def _remove_files(directory: Path) -> None:
    """Manifest first: from then on the store does not exist."""
    for name in (MANIFEST_NAME, _HALF_MANIFEST_NAME, DATA_NAME, SCRATCH_NAME, LOCK_NAME):
        (directory / name).unlink(missing_ok=True)
    try:
        directory.rmdir()
    except OSError as error:
        others = ", ".join(sorted(path.name for path in directory.iterdir()))
        raise StoreError(
            f"{directory} holds what is not of a store ({others}); move it away"
        ) from error
