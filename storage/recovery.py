"""What a store holds when it is opened: its last commit, found and checked."""

from collections.abc import Sequence
from dataclasses import dataclass

from .body import Commit, CommitBody, LiveRecord
from .commit import Version, read_body, read_superblocks, read_versions
from .drives import DriveSet
from .errors import Corrupt, NotCommitted
from .operation import Target
from .superblock import Superblock


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
    was promised to be durable. Kept commits are checked when they are used, not here. Raises
    NotCommitted for a store that has no commit.
    """
    superblocks = find_superblocks(drives)
    body = read_body(drives.drives[0], drives.layout, superblocks[0], drives.patience)
    versions, problems = versions_of(drives, body.commit)
    if problems:
        raise problems[0]
    return LastCommit(superblock=superblocks[0], body=body, versions=versions)


def find_superblocks(drives: DriveSet) -> list[Superblock]:
    """The whole superblocks, the newest first; NotCommitted when there is none."""
    manifest = drives.manifest
    found = read_superblocks(drives.drives[0], manifest.uuid, drives.patience)
    if not found:
        raise NotCommitted(
            f"store {manifest.name!r} was created but nothing was ever committed to it; "
            "remove it and create it again"
        )
    return found


def versions_of(drives: DriveSet, commit: Commit) -> tuple[dict[int, Version], list[Corrupt]]:
    """The versions that a commit names, by record index, and what is wrong with the others."""
    targets = entries_of(drives, commit)
    return read_versions(targets, drives.manifest.uuid, drives.patience)


def entries_of(drives: DriveSet, commit: Commit) -> Sequence[tuple[int, LiveRecord, Target]]:
    """Index, entry and place of every record that a commit has."""
    return [
        (index, entry, drives.target(index, entry.extent_index))
        for index, entry in enumerate(commit.live)
        if entry is not None
    ]
