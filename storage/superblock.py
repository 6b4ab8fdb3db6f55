"""The pages that name a file and its live commit: header and superblock. Pure codecs.

Numbers are little-endian. The last four bytes of each page are the CRC-32 of all bytes before.
"""

import struct
import zlib
from dataclasses import dataclass
from uuid import UUID

from .errors import Incompatible
from .record import PAGE_BYTES

FORMAT_VERSION = 2
_HEADER_MAGIC = b"HEADRACE"
_SUPERBLOCK_MAGIC = b"HRCOMMIT"
_HEADER = struct.Struct("<8sI4x16sIIQ")
_SUPERBLOCK = struct.Struct("<8sI4x16sQQQIIQ")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """First page of a volume's file: which store it belongs to, and which volume it is."""

    uuid: UUID
    volume_index: int
    num_volumes: int
    manifest_hash: int  # xxh3_64 of the bytes of this volume's manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Superblock:
    """One flip: the generation that is live from it on, and the commit body that lists it all.

    `sequence` grows with every flip, `generation` only with those that commit something new.
    """

    uuid: UUID
    sequence: int
    generation: int
    step: int
    body_hash: int  # xxh3_64 of the body
    body_bytes: int
    body_copy: int  # of body and superblock: 0 or 1


def seal_page(content: bytes, num_bytes: int = PAGE_BYTES) -> bytes:
    """Pad with zeros to `num_bytes`, the last four of which are the CRC-32 of the others."""
    padded = content.ljust(num_bytes - _CRC.size, b"\0")
    return padded + _CRC.pack(zlib.crc32(padded))


def is_sealed(page: bytes) -> bool:
    """True when the page's CRC-32 is right."""
    return page[-_CRC.size :] == _CRC.pack(zlib.crc32(page[: -_CRC.size]))


def encode_header(header: Header) -> bytes:
    """The header as one page."""
    return seal_page(
        _HEADER.pack(
            _HEADER_MAGIC,
            FORMAT_VERSION,
            header.uuid.bytes,
            header.volume_index,
            header.num_volumes,
            header.manifest_hash,
        )
    )


def decode_header(page: bytes, *, where: str) -> Header:
    """Read a header page; Incompatible for a foreign file, another version, or a damaged page."""
    magic, version, uuid, index, count, manifest_hash = _HEADER.unpack_from(page)
    if magic != _HEADER_MAGIC:
        raise Incompatible(f"{where} is not a Headrace store: it starts with {magic!r}")
    if version != FORMAT_VERSION:
        raise Incompatible(
            f"{where} has format version {version}; this Headrace reads version {FORMAT_VERSION}"
        )
    if not is_sealed(page):
        raise Incompatible(f"{where}: the header page is damaged (wrong CRC)")
    return Header(
        uuid=UUID(bytes=uuid), volume_index=index, num_volumes=count, manifest_hash=manifest_hash
    )


def encode_superblock(superblock: Superblock) -> bytes:
    """The superblock as one page."""
    return seal_page(
        _SUPERBLOCK.pack(
            _SUPERBLOCK_MAGIC,
            FORMAT_VERSION,
            superblock.uuid.bytes,
            superblock.generation,
            superblock.step,
            superblock.body_hash,
            superblock.body_bytes,
            superblock.body_copy,
            superblock.sequence,
        )
    )


def decode_superblock(page: bytes) -> Superblock | None:
    """Read a superblock page; None for one that was never written, torn, or of another kind."""
    magic, version, uuid, generation, step, body_hash, body_bytes, copy, sequence = (
        _SUPERBLOCK.unpack_from(page)
    )
    if magic != _SUPERBLOCK_MAGIC or version != FORMAT_VERSION or not is_sealed(page):
        return None
    return Superblock(
        uuid=UUID(bytes=uuid),
        sequence=sequence,
        generation=generation,
        step=step,
        body_hash=body_hash,
        body_bytes=body_bytes,
        body_copy=copy,
    )
