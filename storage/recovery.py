"""What a store holds when it is opened: its last commit, found and checked."""

from dataclasses import dataclass

from .commit import Version, read_body, read_superblock, read_versions
from .drives import DriveSet
from .errors import Corrupt
from .superblock import Superblock
from .trailer import CommitBody


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCommit:
    """The live commit: its superblock, its body, and the version of every record it has."""

    superblock: Superblock
    body: CommitBody
    versions: dict[int, Version]


def read_last_commit(drives: DriveSet) -> LastCommit:
    """Find the newest commit and check that all of it is there.

    A torn superblock was never a commit, so the one before it counts. Anything else that does not
    fit is damage, not a crash, and raises Corrupt: falling back silently would lose a commit that
    was promised to be durable. Raises NotCommitted for a store that has no commit.
    """
    first, patience = drives.drives[0], drives.patience
    uuid = drives.manifest.uuid
    superblock = read_superblock(first, uuid, drives.manifest.name, patience)
    body = read_body(first, drives.layout, superblock, patience)
    targets = []
    for index, entry in enumerate(body.live):
        if entry is None:
            continue
        if not 0 <= entry.extent_index < len(drives.layout.extents[index]):
            raise Corrupt(f"commit {superblock.generation} names extent {entry.extent_index}")
        targets.append((index, entry, drives.target(index, entry.extent_index)))
    versions = read_versions(targets, uuid, patience)
    return LastCommit(superblock=superblock, body=body, versions=versions)
