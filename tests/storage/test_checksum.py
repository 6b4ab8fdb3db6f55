"""Checksums: taken in any order, over the payload alone."""

import random

import pytest

from headrace.storage.checksum import Digests, Spans
from store_cases import small_records

RECORD = small_records(1, num_elements=30_000)[0]
BLOCK_BYTES = 8192


def _digests(data: bytes, *, order: int) -> Digests:
    """Digest the record block by block, in an order that depends on `order`."""
    spans = Spans.of(RECORD)
    starts = list(range(0, RECORD.padded_bytes, BLOCK_BYTES))
    random.Random(order).shuffle(starts)
    digests: Digests = {}
    for start in starts:
        digests.update(spans.digest(start, memoryview(data)[start : start + BLOCK_BYTES]))
    return digests


def _checksums(data: bytes, *, order: int = 0) -> list[int]:
    spans, digests = Spans.of(RECORD), _digests(data, order=order)
    return [spans.checksum(i, digests, BLOCK_BYTES) for i in range(len(RECORD.tensors))]


@pytest.fixture
def data() -> bytes:
    return random.Random(3).randbytes(RECORD.padded_bytes)


def test_the_order_of_blocks_does_not_matter(data: bytes) -> None:
    assert _checksums(data, order=1) == _checksums(data, order=2)


def test_a_tensor_read_alone_has_the_same_checksum(data: bytes) -> None:
    spans = Spans.of(RECORD)
    [(start, stop)] = RECORD.runs(["exp_avg"])
    digests: Digests = {}
    while start < stop:
        end = min(stop, (start // BLOCK_BYTES + 1) * BLOCK_BYTES)
        digests.update(spans.digest(start, memoryview(data)[start:end]))
        start = end
    assert spans.checksum(1, digests, BLOCK_BYTES) == _checksums(data)[1]


def test_every_payload_byte_counts_and_padding_does_not(data: bytes) -> None:
    sound = _checksums(data)
    payload_stop = RECORD.tensors[0].payload_bytes
    for position, changes in ((0, 0), (payload_stop - 1, 0), (RECORD.offset("exp_avg"), 1)):
        changed = bytearray(data)
        changed[position] ^= 1
        differs = [a != b for a, b in zip(sound, _checksums(bytes(changed)), strict=True)]
        assert differs.index(True) == changes and sum(differs) == 1
    padding = bytearray(data)
    padding[payload_stop] ^= 1
    assert payload_stop < RECORD.offset("exp_avg")
    assert _checksums(bytes(padding)) == sound


def test_swapped_blocks_are_noticed(data: bytes) -> None:
    swapped = data[BLOCK_BYTES : 2 * BLOCK_BYTES] + data[:BLOCK_BYTES] + data[2 * BLOCK_BYTES :]
    assert _checksums(swapped)[0] != _checksums(data)[0]
