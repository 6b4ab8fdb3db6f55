"""The commit body: the live commit, the kept ones, and bytes written over the life. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRecord:
    """A record's entry in a commit: the extent, and the hash of the trailer that lies there."""

    extent_index: int
    generation: int
    step: int
    trailer_hash: int  # xxh3_64 of the trailer's pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What was made durable at once: the version of every record, and the committer's metadata.

    `live[i]` is None for a record that was never written.
    """

    generation: int
    step: int
    metadata: Mapping[str, Any]
    live: Sequence[LiveRecord | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBody:
    """What a superblock points at. `written_bytes` counts the life of each volume's file."""

    commit: Commit
    kept: Sequence[Commit]
    written_bytes: Sequence[int]


def encode_metadata(metadata: Mapping[str, Any]) -> str:
    """Metadata as compact JSON; TypeError for values that JSON lacks."""
    return json.dumps(metadata, separators=(",", ":"), ensure_ascii=False)


def encode_body(body: CommitBody) -> bytes:
    """A commit body as JSON in UTF-8."""
    values = {
        "commits": [_commit_values(one) for one in (body.commit, *body.kept)],
        "written_bytes": list(body.written_bytes),
    }
    return encode_metadata(values).encode()


def decode_body(data: bytes) -> CommitBody:
    """Read what `encode_body` wrote; ValueError when it is something else."""
    values = json.loads(data)
    try:
        commit, *kept = (_read_commit(one) for one in values["commits"])
        return CommitBody(commit=commit, kept=kept, written_bytes=values["written_bytes"])
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"a commit body lacks {error}") from error


def _commit_values(commit: Commit) -> dict[str, Any]:
    live = [
        None if one is None else [one.extent_index, one.generation, one.step, one.trailer_hash]
        for one in commit.live
    ]
    return {
        "generation": commit.generation,
        "step": commit.step,
        "metadata": dict(commit.metadata),
        "records": live,
    }


def _read_commit(values: Mapping[str, Any]) -> Commit:
    live = [
        None
        if one is None
        else LiveRecord(extent_index=one[0], generation=one[1], step=one[2], trailer_hash=one[3])
        for one in values["records"]
    ]
    return Commit(
        generation=values["generation"],
        step=values["step"],
        metadata=values["metadata"],
        live=live,
    )
