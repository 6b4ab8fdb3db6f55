"""Making a generation the live one, and finding the live one again.

Order: every record written, then the commit body, then a sync of every volume, then one durable
page, the superblock that the last commit did not use. Only this page makes the commit. Body and
superblock are read back at once: a drive that spoils them must not cost the commit before.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from uuid import UUID

from .body import Commit, CommitBody, LiveRecord, decode_body
from .checksum import hash_bytes
from .errors import Corrupt
from .future import Patience, wait_for
from .layout import SUPERBLOCK_OFFSETS, Layout
from .operation import Drive, Ended, Target, read_trailer
from .record import PAGE_BYTES, round_up
from .superblock import Superblock, decode_superblock, encode_superblock
from .trailer import Trailer, decode_trailer
from .volume import page_buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One finished version of a record: where it lies, its trailer, and the trailer's hash."""

    extent_index: int
    trailer: Trailer
    trailer_hash: int

    def entry(self) -> LiveRecord:
        """The version as a commit body names it."""
        return LiveRecord(
            extent_index=self.extent_index,
            generation=self.trailer.generation,
            step=self.trailer.step,
            trailer_hash=self.trailer_hash,
        )


def write_body(drive: Drive, layout: Layout, body: bytes, copy: int, patience: Patience) -> None:
    """Write a commit body into area `copy` of the first volume."""
    size = round_up(len(body), PAGE_BYTES)
    _write_page(drive, layout.body_offset(copy), body, size, patience, durable=False)


def sync_all(drives: Sequence[Drive], patience: Patience) -> None:
    """Return when every volume has everything; raise the first failure after all have answered."""
    outcomes = [(drive, drive.queue.run("sync", drive.volume.sync)) for drive in drives]
    failures: list[Exception] = []
    for drive, outcome in outcomes:
        try:
            wait_for(outcome, f"sync of volume {drive.queue.name}", patience)
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]


def write_superblock(drive: Drive, superblock: Superblock, patience: Patience) -> None:
    """Write the page that makes the commit, durably."""
    offset = SUPERBLOCK_OFFSETS[superblock.body_copy]
    page = encode_superblock(superblock)
    _write_page(drive, offset, page, PAGE_BYTES, patience, durable=True)


def erase_superblock(drive: Drive, copy: int, patience: Patience) -> None:
    """Make a flip as if it had never been, durably: the other superblock says what there is."""
    _write_page(drive, SUPERBLOCK_OFFSETS[copy], b"", PAGE_BYTES, patience, durable=True)


def read_superblocks(drive: Drive, uuid: UUID, patience: Patience) -> list[Superblock]:
    """The whole superblocks of this store, the newest first: none, one or two."""
    found = []
    for offset in SUPERBLOCK_OFFSETS:
        one = decode_superblock(_read_bytes(drive, offset, PAGE_BYTES, patience))
        if one is not None and one.uuid == uuid:
            found.append(one)
    return sorted(found, key=lambda one: one.sequence, reverse=True)


def read_body(
    drive: Drive, layout: Layout, superblock: Superblock, patience: Patience
) -> CommitBody:
    """The body that a superblock names; Corrupt when it is not the one that was committed."""
    what = f"the body of commit {superblock.generation} on volume {drive.queue.name}"
    offset = layout.body_offset(superblock.body_copy)
    size = min(superblock.body_bytes, layout.body_bytes)
    data = _read_bytes(drive, offset, size, patience)
    if len(data) != superblock.body_bytes or hash_bytes(data) != superblock.body_hash:
        raise Corrupt(f"{what}, byte {offset}, is damaged (wrong checksum)")
    try:
        body = decode_body(data)
    except ValueError as error:
        raise Corrupt(f"{what} cannot be read: {error}") from error
    for commit in (body.commit, *body.kept):
        _check_entries(commit, layout, what)
    return body


def read_versions(
    targets: Sequence[tuple[int, LiveRecord, Target]], uuid: UUID, patience: Patience
) -> tuple[dict[int, Version], list[Corrupt]]:
    """Read trailers, all at once, and check them against the entries of a commit.

    `targets` holds record index, entry and extent. Returned are the versions that are as they
    were committed, by record index, and an error for every other one.
    """
    reads = []
    for index, entry, target in targets:
        outcome: Future[None] = Future()
        buffer = read_trailer(target, _resolver(outcome))
        reads.append((index, entry, target, outcome, buffer))
    versions, problems = {}, []
    for index, entry, target, outcome, buffer in reads:
        wait_for(outcome, f"trailer of record {target.record.name!r}", patience)
        pages = bytes(buffer)
        trailer = decode_trailer(pages)
        if trailer is None or hash_bytes(pages) != entry.trailer_hash or trailer.uuid != uuid:
            problems.append(_not_as_committed(target, entry))
            continue
        versions[index] = Version(
            extent_index=entry.extent_index, trailer=trailer, trailer_hash=entry.trailer_hash
        )
    return versions, problems


def _check_entries(commit: Commit, layout: Layout, what: str) -> None:
    if len(commit.live) != len(layout.records):
        raise Corrupt(f"{what} lists {len(commit.live)} records")
    for entry, extents in zip(commit.live, layout.extents, strict=True):
        if entry is not None and not 0 <= entry.extent_index < len(extents):
            raise Corrupt(f"{what} names extent {entry.extent_index} of a record")


def _not_as_committed(target: Target, entry: LiveRecord) -> Corrupt:
    start = target.record.padded_bytes
    piece = next(target.layout.pieces(target.extent, start, start + 1))
    return Corrupt(
        f"record {target.record.name!r}: the trailer of generation {entry.generation}, volume "
        f"{target.drives[piece.volume].queue.name}, byte {piece.offset}, is not the one that was "
        "committed; `headrace fsck` lists the commits to go back to"
    )


def _resolver(outcome: Future[None]) -> Ended:
    def ended(error: BaseException | None) -> None:
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)

    return ended


def _write_page(
    drive: Drive, offset: int, data: bytes, size: int, patience: Patience, *, durable: bool
) -> None:
    buffer = page_buffer(size)
    buffer[: len(data)] = data
    view = memoryview(buffer)[:size]

    def work() -> None:
        drive.volume.write(offset, view, durable=durable)

    wait_for(drive.queue.run("write", work, size), "commit", patience)
    if _read_bytes(drive, offset, size, patience) != view:
        raise Corrupt(
            f"volume {drive.queue.name}, byte {offset}: {size} bytes of a commit came back "
            "different from how they were written; do not trust this drive"
        )


def _read_bytes(drive: Drive, offset: int, num_bytes: int, patience: Patience) -> bytes:
    view = memoryview(page_buffer(num_bytes))
    size = round_up(num_bytes, PAGE_BYTES)

    def work() -> None:
        drive.volume.read(offset, view[:size])

    wait_for(drive.queue.run("read", work, size), "reading a commit", patience)
    return bytes(view[:num_bytes])
