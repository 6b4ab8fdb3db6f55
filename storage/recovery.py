"""What a store holds when it is opened: its last commit, found and checked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .body import Commit, CommitBody
from .commit import Version, read_body, read_superblocks, read_versions
from .drives import DriveSet
from .errors import Corrupt, NotCommitted
from .scrub import Progress, scrub
from .superblock import Superblock

Known = Callable[[int, int], Version | None]  # record index, extent index -> what lies there


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
    targets = [
        (index, entry, drives.target(index, entry.extent_index))
        for index, entry in enumerate(commit.live)
        if entry is not None
    ]
    return read_versions(targets, drives.manifest.uuid, drives.patience)


def version_in(drives: DriveSet, commit: Commit, index: int, known: Known) -> Version:
    """Record `index` as a commit has it; its trailer is read where it is not `known` already.

    NotCommitted when the commit lacks the record, Corrupt when the trailer is not its own.
    """
    entry = commit.live[index]
    if entry is None:
        name = drives.layout.records[index].name
        raise NotCommitted(f"record {name!r} was not yet written in commit {commit.generation}")
    left = known(index, entry.extent_index)
    if left is not None and left.trailer_hash == entry.trailer_hash:
        return left
    target = drives.target(index, entry.extent_index)
    found, problems = read_versions([(index, entry, target)], drives.manifest.uuid, drives.patience)
    if problems:
        raise problems[0]
    return found[index]


def verify_all(
    drives: DriveSet,
    committed: Mapping[int, Version],
    kept: Sequence[Commit],
    progress: Progress | None,
) -> list[str]:
    """Read the committed versions and those of kept commits; what is wrong, in words."""
    versions = {(index, one.extent_index): one for index, one in committed.items()}
    problems = []
    for commit in kept:
        found, damaged = versions_of(drives, commit)
        problems += [f"kept commit {commit.generation}: {error}" for error in damaged]
        versions |= {(index, one.extent_index): one for index, one in found.items()}
    targets = [(drives.target(*place), one.trailer) for place, one in sorted(versions.items())]
    return problems + scrub(targets, drives.patience, progress)
