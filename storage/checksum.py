"""Checksums of tensors, taken block by block in whichever thread moves the block.

A block is the part of a tensor's payload (never its padding) between two multiples of the block
size, counted from the start of the record. A tensor's checksum is the xxh3_64 of the xxh3_64 of
its blocks, in order, eight little-endian bytes each: blocks can be hashed in any order.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

import xxhash

from .record import RecordSpec

Digests = dict[int, int]  # start of a block (bytes from the start of the record) -> its xxh3_64


class OnDevice(Protocol):
    """Bytes that the processor does not see where they are."""

    def host_copy(self) -> memoryview:
        """The bytes in host memory."""


def hash_bytes(data: bytes | memoryview | OnDevice) -> int:
    """xxh3_64 of some bytes; bytes on a device are copied here for it."""
    seen = data if isinstance(data, bytes | memoryview) else data.host_copy()
    digest: int = xxhash.xxh3_64_intdigest(seen)
    return digest


@dataclass(frozen=True, slots=True)
class Spans:
    """Where the payload of each tensor lies in a record: (start, stop) in bytes, in order."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, record: RecordSpec) -> Self:
        """The spans of a record's tensors."""
        ranges = []
        start = 0
        for tensor in record.tensors:
            ranges.append((start, start + tensor.payload_bytes))
            start += tensor.padded_bytes
        return cls(tuple(ranges))

    def overlaps(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Payload ranges inside record bytes [start, stop)."""
        for low, high in self.ranges:
            low, high = max(low, start), min(high, stop)
            if low < high:
                yield low, high

    def payload_bytes(self, start: int, stop: int) -> int:
        """Payload bytes inside record bytes [start, stop)."""
        return sum(high - low for low, high in self.overlaps(start, stop))

    def digest(self, start: int, view: memoryview) -> Digests:
        """Hash the blocks inside `view`, which holds the record from byte `start` on."""
        return {
            low: hash_bytes(view[low - start : high - start])
            for low, high in self.overlaps(start, start + len(view))
        }

    def checksum(self, tensor_index: int, digests: Mapping[int, int], block_bytes: int) -> int:
        """The checksum of one tensor from the digests of all its blocks."""
        position, stop = self.ranges[tensor_index]
        blocks = []
        while position < stop:
            blocks.append(digests[position])
            position = (position // block_bytes + 1) * block_bytes
        return hash_bytes(struct.pack(f"<{len(blocks)}Q", *blocks))
