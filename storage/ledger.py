"""The commits of one store: the live one, the kept ones, and the flip that changes them.

The caller holds the store's commit lock; reading the properties needs none.
"""

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .body import Commit, CommitBody, encode_body
from .checksum import hash_bytes
from .commit import sync_all, write_body, write_superblock
from .drives import DriveSet
from .errors import Corrupt, IoFailed, Misuse, NotCommitted
from .layout import extent_bytes
from .memory import memory_status
from .session import Session
from .stats import StorageStatus
from .superblock import Superblock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """A commit that is on the drives. `sync_seconds` is the part spent in sync and superblock."""

    generation: int
    step: int
    num_records: int  # records written in this generation
    seconds: float
    sync_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCommit:
    """A commit that can be read: its price is the bytes that nothing else needs."""

    generation: int
    step: int
    metadata: dict[str, object]
    live: bool
    kept: bool
    num_bytes: int  # all versions it consists of
    own_bytes: int  # of those, the ones that no other commit needs: free for writes once released


class Ledger:
    """Which commits there are. `live` is None before the first."""

    def __init__(
        self,
        drives: DriveSet,
        session: Session,
        body: CommitBody | None,
        superblock: Superblock | None,
    ) -> None:
        self._drives = drives
        self._session = session
        self.live: Commit | None = body.commit if body else None
        self.kept: tuple[Commit, ...] = tuple(body.kept) if body else ()
        self._sequence = superblock.sequence if superblock else 0
        self._written_before = list(body.written_bytes if body else [0] * len(drives.drives))

    @property
    def generation(self) -> int:
        """Number of the live commit; 0 before the first."""
        return self.live.generation if self.live else 0

    @property
    def step(self) -> int:
        """The step that the live commit was begun with; 0 before the first."""
        return self.live.step if self.live else 0

    def written_bytes(self) -> list[int]:
        """Bytes written on each volume over the life of the store."""
        now = self._drives.written_bytes()
        return [before + more for before, more in zip(self._written_before, now, strict=True)]

    def status(self) -> StorageStatus:
        """What the store is and which road its bytes take."""
        drives = self._drives
        return StorageStatus(
            name=drives.manifest.name,
            generation=self.generation,
            step=self.step,
            num_records=len(drives.layout.records),
            total_bytes=drives.layout.total_bytes,
            read_only=self._session.read_only,
            volumes=drives.statuses(self.written_bytes()),
            warnings=drives.warnings(),
            memory=memory_status(),
        )

    def find(self, generation: int) -> Commit:
        """The live or kept commit of that number; NotCommitted names those there are."""
        for commit in self._all():
            if commit.generation == generation:
                return commit
        there = ", ".join(str(one.generation) for one in self._all()) or "none"
        raise NotCommitted(f"commit {generation} is not there any more; there are: {there}")

    def with_kept(self, generation: int) -> tuple[Commit, ...]:
        """The kept commits, with one more; Misuse when the store has no room for it."""
        commit = self.find(generation)
        if self._is_kept(generation):
            return self.kept
        room = self._drives.layout.keep_generations
        if len(self.kept) >= room:
            names = ", ".join(str(one.generation) for one in self.kept) or "none"
            raise Misuse(
                f"the store was made to keep {room} commits beside the live one and keeps {names}; "
                "release one, or create the store with a larger keep_generations"
            )
        return (*self.kept, commit)

    def only_kept(self, generations: Collection[int]) -> tuple[Commit, ...]:
        """Exactly these commits; NotCommitted for one that is not there, Misuse for too many."""
        room = self._drives.layout.keep_generations
        if len(set(generations)) > room:
            raise Misuse(f"the store was made to keep {room} commits, not {len(set(generations))}")
        return tuple(self.find(generation) for generation in sorted(set(generations)))

    def without_kept(self, generation: int) -> tuple[Commit, ...]:
        """The kept commits, without that one; NotCommitted when it is not kept."""
        left = tuple(one for one in self.kept if one.generation != generation)
        if len(left) == len(self.kept):
            names = ", ".join(str(one.generation) for one in self.kept) or "none"
            raise NotCommitted(f"commit {generation} is not kept; kept are: {names}")
        return left

    def flip(self, live: Commit, kept: Sequence[Commit]) -> float:
        """Make this what the store holds, durably; the seconds spent in sync and superblock.

        A body that could not be written forbids commits until `abort`. After any other failure it
        is in doubt what the drives hold, and the store is read-only until it is opened again.
        """
        try:
            superblock = self._write_body(live, kept)
        except (Corrupt, IoFailed) as error:
            self._session.failed(error)
            raise
        except BaseException as error:  # it may still land, in the area of the next attempt
            self._refuse_writes(live.generation, error)
            raise
        start = time.monotonic()
        try:
            sync_all(self._drives.drives, self._drives.patience)
            write_superblock(self._drives.drives[0], superblock, self._drives.patience)
        except BaseException as error:
            self._refuse_writes(live.generation, error)
            raise
        self._sequence = superblock.sequence
        self.live, self.kept = live, tuple(kept)
        return time.monotonic() - start

    def _write_body(self, live: Commit, kept: Sequence[Commit]) -> Superblock:
        body = encode_body(CommitBody(commit=live, kept=kept, written_bytes=self.written_bytes()))
        copy = (self._sequence + 1) % 2
        drives = self._drives
        write_body(drives.drives[0], drives.layout, body, copy, drives.patience)
        return Superblock(
            uuid=drives.manifest.uuid,
            sequence=self._sequence + 1,
            generation=live.generation,
            step=live.step,
            body_hash=hash_bytes(body),
            body_bytes=len(body),
            body_copy=copy,
        )

    def _refuse_writes(self, generation: int, error: BaseException) -> None:
        why = f"commit {generation} failed: {error}; open the store again"
        self._session.refuse_writes(why)
        log.error("store %s is read-only: %s", self._drives.manifest.name, why)

    def pinned(self, index: int) -> set[int]:
        """The extents of a record that kept commits need."""
        entries = (commit.live[index] for commit in self.kept)
        return {entry.extent_index for entry in entries if entry is not None}

    def summary(self) -> list[KeptCommit]:
        """Every commit that can be read, the oldest first, with its price in bytes."""
        return [self._priced(commit) for commit in sorted(self._all(), key=lambda c: c.generation)]

    def _priced(self, commit: Commit) -> KeptCommit:
        mine = _extents_of(commit)
        others = [_extents_of(one) for one in self._all() if one.generation != commit.generation]
        return KeptCommit(
            generation=commit.generation,
            step=commit.step,
            metadata=dict(commit.metadata),
            live=commit.generation == self.generation,
            kept=self._is_kept(commit.generation),
            num_bytes=self._bytes_of(mine),
            own_bytes=self._bytes_of(mine.difference(*others)),
        )

    def _bytes_of(self, extents: set[tuple[int, int]]) -> int:
        records = self._drives.layout.records
        return sum(extent_bytes(records[index]) for index, _ in extents)

    def _is_kept(self, generation: int) -> bool:
        return any(one.generation == generation for one in self.kept)

    def _all(self) -> list[Commit]:
        live = [self.live] if self.live else []
        return live + [one for one in self.kept if one.generation != self.generation]


def _extents_of(commit: Commit) -> set[tuple[int, int]]:
    return {
        (index, entry.extent_index) for index, entry in enumerate(commit.live) if entry is not None
    }
