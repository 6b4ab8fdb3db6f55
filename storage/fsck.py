"""Which commits a store still has, whole or not, and going back to one of them.

This works where `TensorStore.open` refuses: when the newest commit is damaged. Nothing is chosen
here; someone names the commit to go back to, and loses what came after it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .body import Commit, CommitBody
from .commit import erase_superblock, read_body
from .config import VolumeConfig
from .drives import DriveSet, OpenOptions, open_drives
from .errors import Corrupt, NotCommitted
from .ledger import Ledger
from .recovery import find_superblocks, versions_of
from .scrub import Progress, scrub
from .session import Session
from .superblock import Superblock
from .volume import OpenVolume, open_file_volume


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCommit:
    """A commit that the drives still know. It is whole when `problems` is empty.

    Neither `live` nor `kept`: it was live before, and later writes may have taken its extents.
    """

    generation: int
    step: int
    metadata: Mapping[str, Any]
    live: bool
    kept: bool
    num_records: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """All that was found of one store, the newest commit first."""

    name: str
    commits: tuple[FoundCommit, ...]
    problems: tuple[str, ...]  # of superblocks and bodies, not of single commits


@dataclass(frozen=True, slots=True)
class _Source:
    """A superblock whose body could be read."""

    superblock: Superblock
    body: CommitBody


def find_commits(
    volumes: Sequence[VolumeConfig],
    *,
    name: str,
    content: bool = False,
    progress: Progress | None = None,
    io_timeout_seconds: float = 60,
    open_volume: OpenVolume = open_file_volume,
) -> StoreReport:
    """List the commits of a store and check them: trailers, and with `content` every byte.

    `progress` hears of the bytes done and in all, commit by commit. Raises what `TensorStore.open`
    raises, but not for damage within the commits.
    """
    options = OpenOptions(
        io_timeout_seconds=io_timeout_seconds, open_volume=open_volume, read_only=True
    )
    drives = open_drives(volumes, options, name=name)
    try:
        sources, problems = _sources(drives)
        newest = max(one.generation for one in find_superblocks(drives))
        found = [
            _judge(drives, commit, source, newest, content, progress)
            for commit, source in _candidates(sources)
        ]
        return StoreReport(name=name, commits=tuple(found), problems=tuple(problems))
    finally:
        drives.close()


def fall_back(
    volumes: Sequence[VolumeConfig],
    *,
    name: str,
    generation: int,
    progress: Progress | None = None,
    io_timeout_seconds: float = 60,
    open_volume: OpenVolume = open_file_volume,
) -> int:
    """Make commit `generation` the live one again, under a new number, which is returned.

    All of it is read and checked first: Corrupt says what is wrong, and nothing was changed.
    NotCommitted when there is no such commit. Kept commits stay kept.
    """
    options = OpenOptions(io_timeout_seconds=io_timeout_seconds, open_volume=open_volume)
    drives = open_drives(volumes, options, name=name)
    try:
        sources, _ = _sources(drives)
        commit, source = _find(sources, generation)
        if problems := _check(drives, commit, True, progress):
            more = f" and {len(problems) - 1} more problems" if problems[1:] else ""
            raise Corrupt(f"commit {generation} is not whole: {problems[0]}{more}")
        return _make_live(drives, commit, source, sources[0].body.kept)
    finally:
        drives.close()


def _sources(drives: DriveSet) -> tuple[list[_Source], list[str]]:
    sources, problems = [], []
    for superblock in find_superblocks(drives):
        try:
            body = read_body(drives.drives[0], drives.layout, superblock, drives.patience)
            sources.append(_Source(superblock, body))
        except Corrupt as error:
            problems.append(str(error))
    return sources, problems


def _candidates(sources: Sequence[_Source]) -> list[tuple[Commit, _Source]]:
    """Every commit that a body names, as the newest body has it, the newest commit first."""
    found: dict[int, tuple[Commit, _Source]] = {}
    for source in sources:
        for commit in (source.body.commit, *source.body.kept):
            found.setdefault(commit.generation, (commit, source))
    return [found[generation] for generation in sorted(found, reverse=True)]


def _find(sources: Sequence[_Source], generation: int) -> tuple[Commit, _Source]:
    candidates = _candidates(sources)
    for commit, source in candidates:
        if commit.generation == generation:
            return commit, source
    there = ", ".join(str(commit.generation) for commit, _ in candidates) or "none"
    raise NotCommitted(f"there is no commit {generation} in the store; there are: {there}")


def _judge(
    drives: DriveSet,
    commit: Commit,
    source: _Source,
    newest: int,
    content: bool,
    progress: Progress | None,
) -> FoundCommit:
    return FoundCommit(
        generation=commit.generation,
        step=commit.step,
        metadata=commit.metadata,
        live=commit.generation == newest,
        kept=any(one.generation == commit.generation for one in source.body.kept),
        num_records=sum(entry is not None for entry in commit.live),
        problems=tuple(_check(drives, commit, content, progress)),
    )


def _check(drives: DriveSet, commit: Commit, content: bool, progress: Progress | None) -> list[str]:
    versions, damaged = versions_of(drives, commit)
    problems = [str(error) for error in damaged]
    if not content:
        return problems
    targets = [
        (drives.target(index, version.extent_index), version.trailer)
        for index, version in versions.items()
    ]
    return problems + scrub(targets, drives.patience, progress)


def _make_live(drives: DriveSet, commit: Commit, source: _Source, kept: Sequence[Commit]) -> int:
    """Flip, over the copy that does not name `commit`: after a crash it is still there.

    Where that copy is the newest, it is erased first, so that at no moment the store says what it
    cannot show.
    """
    superblocks = find_superblocks(drives)
    last = superblocks[0].sequence
    if (last + 1) % 2 == source.superblock.body_copy:
        erase_superblock(drives.drives[0], superblocks[0].body_copy, drives.patience)
        last += 1
    session = Session(read_only=False)
    ledger = Ledger(drives, session, source.body, replace(superblocks[0], sequence=last))
    newest = max(one.generation for one in superblocks)
    live = replace(commit, generation=newest + 1)
    ledger.flip(live, kept)
    return live.generation
