"""The trailer behind every version of a record, and the commit body that lists them. Pure."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from .layout import trailer_bytes
from .record import RecordSpec
from .superblock import FORMAT_VERSION, is_sealed, seal_page

_MAGIC = b"HRRECORD"
_HEAD = struct.Struct("<8sI4x16sIIQQQI4x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trailer:
    """What lies in front of it: which record, in which extent, of which generation and step.

    `checksums` has one number a tensor (see `checksum.py`).
    """

    uuid: UUID
    record_index: int
    extent_index: int
    generation: int
    step: int
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRecord:
    """A record's entry in a commit body: the live extent, and the hash of the trailer there."""

    extent_index: int
    generation: int
    step: int
    trailer_hash: int  # xxh3_64 of the trailer's pages


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitBody:
    """What a commit says beside its superblock. `written_bytes` counts the life of each volume."""

    metadata: Mapping[str, Any]
    live: Sequence[LiveRecord | None]
    written_bytes: Sequence[int]


def encode_trailer(trailer: Trailer, record: RecordSpec) -> bytes:
    """The trailer as whole pages."""
    head = _HEAD.pack(
        _MAGIC,
        FORMAT_VERSION,
        trailer.uuid.bytes,
        trailer.record_index,
        trailer.extent_index,
        trailer.generation,
        trailer.step,
        record.padded_bytes,
        len(trailer.checksums),
    )
    sums = struct.pack(f"<{len(trailer.checksums)}Q", *trailer.checksums)
    return seal_page(head + sums, trailer_bytes(record))


def decode_trailer(pages: bytes) -> Trailer | None:
    """Read a trailer; None when it is torn or no trailer at all."""
    magic, version, uuid, record, extent, generation, step, _, count = _HEAD.unpack_from(pages)
    if magic != _MAGIC or version != FORMAT_VERSION or not is_sealed(pages):
        return None
    return Trailer(
        uuid=UUID(bytes=uuid),
        record_index=record,
        extent_index=extent,
        generation=generation,
        step=step,
        checksums=struct.unpack_from(f"<{count}Q", pages, _HEAD.size),
    )


def encode_metadata(metadata: Mapping[str, Any]) -> str:
    """Metadata as compact JSON; TypeError for values that JSON lacks."""
    return json.dumps(metadata, separators=(",", ":"), ensure_ascii=False)


def encode_body(body: CommitBody) -> bytes:
    """A commit body as JSON in UTF-8."""
    live = [
        None if one is None else [one.extent_index, one.generation, one.step, one.trailer_hash]
        for one in body.live
    ]
    rest = encode_metadata({"records": live, "written_bytes": list(body.written_bytes)})
    return f'{{"metadata":{encode_metadata(body.metadata)},{rest[1:]}'.encode()


def decode_body(data: bytes) -> CommitBody:
    """Read what `encode_body` wrote; ValueError when it is something else."""
    values = json.loads(data)
    try:
        live = [
            None
            if one is None
            else LiveRecord(
                extent_index=one[0], generation=one[1], step=one[2], trailer_hash=one[3]
            )
            for one in values["records"]
        ]
        return CommitBody(
            metadata=values["metadata"], live=live, written_bytes=values["written_bytes"]
        )
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"a commit body lacks {error}") from error
