"""The trailer behind every version of a record: what it is, and its checksums. Pure codec."""

import struct
from dataclasses import dataclass
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
