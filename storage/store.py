"""The tensor store: records by name, striped over volumes, one committed generation always whole.

Read this first. A mutable record has two extents: a step reads one and writes the other, and
`commit` makes the written ones live by one page. What is on disk, byte by byte: README.md.
"""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Self

from .body import Commit, encode_metadata
from .budget import WriteBudget
from .commit import Version
from .config import VolumeConfig
from .drives import DriveSet, OpenOptions, create_drives, open_drives
from .errors import StoreError
from .files import remove_store, store_directories, store_exists
from .future import Buffer, IoFuture, start_after
from .generation import Generations
from .layout import METADATA_LIMIT_BYTES, STRIPE_BYTES, Layout
from .ledger import CommitInfo, KeptCommit, Ledger
from .operation import read_record, write_record
from .prefill import fill_with_zeros
from .record import RecordSpec
from .recovery import LastCommit, read_last_commit, verify_all, version_in
from .scratch import Scratch
from .scrub import Progress
from .session import Session
from .space import fit_store, measure_rooms
from .stats import StorageStatus, StoreStats
from .trailer import Trailer
from .underway import UnderWay
from .volume import OpenVolume, open_file_volume
from .wear import VolumeWear


class TensorStore:
    """An open store. Make one with `create` or `open`; any thread may call; close it at the end."""

    def __init__(
        self,
        drives: DriveSet,
        last: LastCommit | None,
        *,
        read_only: bool,
        max_bytes_written: int | None,
    ) -> None:
        """Use `create` or `open`."""
        self._drives = drives
        self._records = {record.name: record for record in drives.layout.records}
        self._indexes = {name: i for i, name in enumerate(self._records)}
        self._session = Session(read_only=read_only)
        self._ledger = Ledger(
            drives, self._session, last.body if last else None, last.superblock if last else None
        )
        self._generations = Generations(
            drives.layout, dict(last.versions) if last else {}, self._ledger.pinned
        )
        self._budget = WriteBudget(max_bytes_written, lambda: sum(self._ledger.written_bytes()))
        self._under_way = UnderWay(drives)
        self._lock = threading.RLock()
        self._commit_lock = threading.Lock()

    @classmethod
    def create(
        cls,
        volumes: Sequence[VolumeConfig],
        records: Sequence[RecordSpec],
        *,
        name: str,
        description: Mapping[str, Any] | None = None,
        reserve_bytes: int | None = None,
        io_timeout_seconds: float = 60,
        stripe_bytes: int = STRIPE_BYTES,
        keep_generations: int = 0,
        prefill: bool = False,
        max_bytes_written: int | None = None,
        scratch_bytes: int = 0,
        open_volume: OpenVolume = open_file_volume,
    ) -> Self:
        """Reserve the files of a new store in `<volume>/<name>/`: whole, or nothing is left.

        `description` (JSON values) is kept unchanged for life. `reserve_bytes` must stay free on
        each file system (None: 2 GiB or 5 %, the larger). Space for `keep_generations` kept commits
        is reserved too (`keep`). With `prefill` every extent is written once: the first writes are
        then as fast as later ones; it counts as wear. The others: see `begin`, `open_scratch`.
        NoSpace before anything is made, Misuse when the store exists, Locked, StoreError.
        """

        def place() -> Layout:
            rooms = measure_rooms(volumes, reserve_bytes=reserve_bytes)
            return fit_store(
                rooms, records, stripe_bytes=stripe_bytes, keep_generations=keep_generations,
                scratch_bytes=scratch_bytes,
            )  # fmt: skip

        drives = create_drives(
            volumes,
            place,
            OpenOptions(io_timeout_seconds=io_timeout_seconds, open_volume=open_volume),
            name=name,
            description=dict(description or {}),
        )
        drives.log_roads("created")
        if prefill:
            fill_with_zeros(drives)
        return cls(drives, None, read_only=False, max_bytes_written=max_bytes_written)

    @classmethod
    def open(
        cls,
        volumes: Sequence[VolumeConfig],
        *,
        name: str,
        read_only: bool = False,
        io_timeout_seconds: float = 60,
        max_bytes_written: int | None = None,
        open_volume: OpenVolume = open_file_volume,
    ) -> Self:
        """Open a store at its last commit. The volumes may be given in any order.

        Raises NotCommitted when there was none, Locked, Incompatible (a foreign file, another
        version, volumes that do not belong together), Corrupt, StoreError when there is no store.
        """
        options = OpenOptions(
            io_timeout_seconds=io_timeout_seconds, open_volume=open_volume, read_only=read_only
        )
        drives = open_drives(volumes, options, name=name)
        try:
            last = read_last_commit(drives)
        except BaseException:
            drives.close()
            raise
        drives.log_roads("opened")
        return cls(drives, last, read_only=read_only, max_bytes_written=max_bytes_written)

    @staticmethod
    def remove(volumes: Sequence[VolumeConfig], *, name: str) -> None:
        """Remove a store, or what is left of one; nothing to remove is fine. Locked when in use."""
        remove_store(store_directories(volumes, name))

    @staticmethod
    def exists(volumes: Sequence[VolumeConfig], *, name: str) -> bool:
        """True when the store was created whole on every volume, whether committed or not."""
        return store_exists(store_directories(volumes, name))

    @property
    def records(self) -> Mapping[str, RecordSpec]:
        """The records by name, in the order given at creation."""
        return self._records

    @property
    def description(self) -> Mapping[str, Any]:
        """What the creator said of the store."""
        return self._drives.manifest.description

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the live commit; empty before the first."""
        live = self._ledger.live
        return dict(live.metadata) if live else {}

    def checksums(self) -> dict[str, tuple[int, ...]]:
        """By record, the checksums of its tensors as committed: what they hold in few bytes."""
        return {name: self._generations.checksums(i) for name, i in self._indexes.items()}

    @property
    def generation(self) -> int:
        """Number of the live commit; 0 before the first."""
        return self._ledger.generation

    @property
    def step(self) -> int:
        """The step that the live commit was begun with; 0 before the first."""
        return self._ledger.step

    def begin(self, step: int) -> None:
        """Open the working generation for writes of `step`, or go on with it in a further step.

        Raises Misuse when a write failed and `abort` was not called, or the store is read-only;
        WriteBudgetSpent when the bytes written over the life of the store, and those of one more
        step, exceed `max_bytes_written`: then nothing has changed, and `commit` still works.
        """
        with self._lock:
            self._session.check_writable()
            self._budget.check()
            self._session.begin(step)

    def read_into(
        self,
        record: str,
        slot: Buffer,
        *,
        tensors: Sequence[str] | None = None,
        committed: bool = False,
        generation: int | None = None,
    ) -> IoFuture:
        """Start to fill the slot with a record, or with the named tensors at their offsets.

        Reads the newest version: one written since the last commit (after a write that is under
        way), else the committed one; with `committed` always the latter, with `generation` that of
        the live or a kept commit. Checksums are verified: the future raises Corrupt. Raises
        KeyError, NotCommitted, Corrupt (trailer of a kept commit) and Misuse (slot) at once.
        """
        index = self._indexes[record]
        end = max(stop for _, stop in self._records[record].runs(tensors))
        self._drives.check_slot(slot, record, end)
        kept = None
        if generation is not None:
            commit = self._ledger.find(generation)
            kept = version_in(self._drives, commit, index, self._generations.left_in)
        with self._lock:
            self._session.check_open()
            extent = (
                self._generations.extent_to_read(index, committed=committed)
                if kept is None
                else kept.extent_index
            )
            future = self._under_way.new(f"read of record {record!r}", slot, "nvme_read")
            before = self._generations.add_reader(index, extent, future)
        start = partial(
            read_record,
            self._drives.target(index, extent),
            slot,
            future,
            tensors=tensors,
            trailer=lambda: (kept or self._generations.on_disk(index, extent)).trailer,
        )
        start_after(before, future, start, inherit_failure=True)
        return future

    def write_from(self, record: str, slot: Buffer) -> IoFuture:
        """Start to write a whole record from the slot, into the extent that no commit needs.

        A later write of the same record before the commit replaces this one. Raises KeyError and
        Misuse (outside `begin`, after a failed write, slot too small, read-only record) at once.
        """
        index = self._indexes[record]
        self._drives.check_slot(slot, record, self._records[record].padded_bytes)
        with self._lock:
            step = self._session.step_of(f"write of record {record!r}")
            extent = self._generations.extent_to_write(index)
            future = self._under_way.new(f"write of record {record!r}", slot, "nvme_write")
            before = self._generations.add_writer(index, extent, future)
            epoch = self._generations.epoch
            stamp = Trailer(
                uuid=self._drives.manifest.uuid,
                record_index=index,
                extent_index=extent,
                generation=self.generation + 1,
                step=step,
                checksums=(),
            )
        future.add_done_callback(partial(self._write_ended, future, epoch))
        start = partial(
            write_record,
            self._drives.target(index, extent),
            slot,
            future,
            stamp=stamp,
            written=partial(self._written, index, extent, epoch),
        )
        start_after(before, future, start, inherit_failure=False)
        return future

    def open_scratch(self, num_bytes: int, *, reserve_bytes: int | None = None) -> Scratch:
        """Reserve scratch on the volumes, counted and served as records are; close it before this.

        `reserve_bytes` as in `create`. Raises NoSpace, with the numbers, IoFailed and Misuse.
        """
        self._session.check_writable()
        return Scratch(self._drives, num_bytes, reserve_bytes=reserve_bytes)

    def commit(self, metadata: Mapping[str, Any]) -> CommitInfo:
        """Wait for the writes since the last commit and make them live, durably, with `metadata`.

        Returns when a power loss can no longer undo it. ValueError for metadata above 64 KiB of
        JSON. Raises Misuse after a failed write (then `abort`). A failed sync or superblock raises
        what failed and leaves the store read-only: only opening it again tells which commit lives.
        """
        size = len(encode_metadata(metadata).encode())
        if size > METADATA_LIMIT_BYTES:
            raise ValueError(f"metadata takes {size} bytes; the limit is {METADATA_LIMIT_BYTES}")
        with self._commit_lock:
            start = time.monotonic()
            step = self._await_writes()
            live = self._generations.entries()
            generation = self.generation + 1
            commit = Commit(generation=generation, step=step, metadata=dict(metadata), live=live)
            sync_seconds = self._ledger.flip(commit, self._ledger.kept)
            with self._lock:
                num_records = len(self._generations.working)
                self._generations.settle(committed=True)
        return CommitInfo(
            generation=generation,
            step=step,
            num_records=num_records,
            seconds=time.monotonic() - start,
            sync_seconds=sync_seconds,
        )

    def keep(self, generation: int) -> None:
        """Keep a commit, durably, when others follow: its extents are not written any more.

        The live commit can be kept, no older one. Misuse when the store keeps as many as it was
        made for, NotCommitted when the commit is not there.
        """
        with self._commit_lock:
            self._change_kept(self._ledger.with_kept(generation))

    def release(self, generation: int) -> None:
        """Stop keeping a commit, durably; no other commit is touched. NotCommitted if not kept."""
        with self._commit_lock:
            self._change_kept(self._ledger.without_kept(generation))

    def keep_only(self, generations: Collection[int]) -> None:
        """Keep exactly these commits, in one flip: "the last two and the best", say.

        NotCommitted for one that is neither live nor kept, Misuse for more than there is room for;
        then nothing has changed.
        """
        with self._commit_lock:
            self._change_kept(self._ledger.only_kept(generations))

    def commits(self) -> list[KeptCommit]:
        """The commits that can be read, the oldest first, each with its price in bytes."""
        return self._ledger.summary()

    def abort(self) -> None:
        """Forget everything since the last commit, a failed write too."""
        with self._commit_lock, self._lock:
            self._session.forget()
            self._generations.settle(committed=False)

    def verify(self, progress: Progress | None = None) -> list[str]:
        """Read every committed record, of kept commits too, and check it; what is wrong, in words.

        `progress` hears of the bytes done and the bytes in all, record by record.
        """
        with self._lock:
            self._session.check_open()
            committed = dict(self._generations.committed)
        return verify_all(self._drives, committed, self._ledger.kept, progress)

    def stats(self) -> StoreStats:
        """What was moved since the store was opened."""
        return self._drives.stats()

    def wear(self) -> list[VolumeWear]:
        """Bytes written on each volume over the life of the store, and the health of its drive.

        Asks the drives, which takes some tenths of a second; for status pages, not for every step.
        """
        return self._drives.wear(self._ledger.written_bytes())

    def status(self) -> StorageStatus:
        """What the store is and which road its bytes take."""
        return self._ledger.status()

    def register_device(self, memory: Any) -> None:
        """Make a slab (`DeviceSlab.memory`) known to cuFile until close; without GDS, nothing.

        Only for device slots that the store itself reads and writes; once, for the whole slab.
        """
        self._drives.register_device(memory)

    def close(self) -> None:
        """Let the store go. What was not committed is lost; every future comes to its end."""
        with self._lock:
            was_open = self._session.close()
        if was_open:
            self._drives.close(self._under_way.give_up)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _await_writes(self) -> int:
        """Close the working generation to further writes, wait for all of it; its step."""
        with self._lock:
            step = self._session.end("commit")
            writes = list(self._generations.writes.values())
        for write in writes:
            try:
                write.result()
            except StoreError as error:
                self._session.failed(error)
        self._session.check_writable()
        return step

    def _change_kept(self, kept: Sequence[Commit]) -> None:
        with self._lock:
            self._session.check_writable()
        live = self._ledger.live
        if live is not None and list(kept) != list(self._ledger.kept):
            self._ledger.flip(live, kept)

    def _written(
        self, index: int, extent: int, epoch: int, trailer: Trailer, trailer_hash: int
    ) -> None:
        version = Version(extent_index=extent, trailer=trailer, trailer_hash=trailer_hash)
        with self._lock:
            self._generations.written(index, version, epoch)

    def _write_ended(self, future: IoFuture, epoch: int) -> None:
        error = future.exception()
        with self._lock:
            if error is not None and epoch == self._generations.epoch:
                self._session.failed(error)
