"""What is written to disk is read back the same; what is damaged is never taken for sound."""

import json
import zlib
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage import PAGE_BYTES, Incompatible, RecordSpec, VolumeConfig, plan_layout
from headrace.storage.body import Commit, CommitBody, LiveRecord, decode_body, encode_body
from headrace.storage.manifest import Manifest, decode_manifest, encode_manifest
from headrace.storage.superblock import (
    Header,
    Superblock,
    decode_header,
    decode_superblock,
    encode_header,
    encode_superblock,
)
from headrace.storage.trailer import Trailer, decode_trailer, encode_trailer
from store_cases import small_records

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
superblocks = st.builds(
    Superblock,
    uuid=st.uuids(),
    sequence=u64,
    generation=u64,
    step=u64,
    body_hash=u64,
    body_bytes=u32,
    body_copy=st.integers(0, 1),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
live_records = st.builds(
    LiveRecord, extent_index=st.integers(0, 1), generation=u64, step=u64, trailer_hash=u64
)


@settings(max_examples=50, deadline=None)
@given(superblocks)
def test_a_superblock_comes_back(superblock: Superblock) -> None:
    page = encode_superblock(superblock)
    assert len(page) == PAGE_BYTES
    assert decode_superblock(page) == superblock


@settings(max_examples=100, deadline=None)
@given(superblocks, superblocks, st.integers(1, 7))
def test_a_torn_superblock_is_no_commit(old: Superblock, new: Superblock, sectors: int) -> None:
    before, after = encode_superblock(old), encode_superblock(new)
    torn = after[: sectors * 512] + before[sectors * 512 :]
    assert decode_superblock(torn) in ((new,) if torn == after else (None,))


@settings(max_examples=100, deadline=None)
@given(superblocks, st.integers(0, PAGE_BYTES * 8 - 1))
def test_one_flipped_bit_spoils_a_superblock(superblock: Superblock, bit: int) -> None:
    page = bytearray(encode_superblock(superblock))
    page[bit // 8] ^= 1 << bit % 8
    assert decode_superblock(bytes(page)) is None


def test_an_empty_page_is_no_commit() -> None:
    assert decode_superblock(bytes(PAGE_BYTES)) is None


def test_a_header_comes_back_and_damage_is_named() -> None:
    header = Header(uuid=UUID(int=7), volume_index=1, num_volumes=3, manifest_hash=2**64 - 1)
    page = bytearray(encode_header(header))
    assert decode_header(bytes(page), where="data.bin") == header
    page[30] ^= 1
    with pytest.raises(Incompatible, match="data.bin: the header page is damaged"):
        decode_header(bytes(page), where="data.bin")


@pytest.mark.parametrize("num_tensors", [1, 2, 480, 1000])
def test_a_trailer_comes_back(num_tensors: int) -> None:
    [one] = small_records(1)
    tensors = tuple(
        type(one.tensors[0])(name=f"t{i}", dtype="int8", shape=(i,)) for i in range(num_tensors)
    )
    record = RecordSpec(name="many", tensors=tensors)
    trailer = Trailer(
        uuid=UUID(int=1),
        record_index=4,
        extent_index=1,
        generation=10,
        step=11,
        checksums=tuple(2**64 - 1 - i for i in range(num_tensors)),
    )
    pages = encode_trailer(trailer, record)
    assert len(pages) % PAGE_BYTES == 0
    assert decode_trailer(pages) == trailer
    assert decode_trailer(pages[:-1] + bytes([pages[-1] ^ 1])) is None
    assert decode_trailer(bytes(len(pages))) is None


commits = st.builds(
    Commit,
    generation=u64,
    step=u64,
    metadata=st.dictionaries(st.text(), json_values, max_size=4),
    live=st.lists(st.none() | live_records, max_size=5),
)


@settings(max_examples=50, deadline=None)
@given(commits, st.lists(commits, max_size=2), st.lists(u64, max_size=3))
def test_a_commit_body_comes_back(commit: Commit, kept: list[Commit], written: list[int]) -> None:
    body = CommitBody(commit=commit, kept=kept, written_bytes=written)
    assert decode_body(encode_body(body)) == body


def test_a_commit_body_of_another_shape_is_refused() -> None:
    short = b'{"commits":[{"generation":1,"step":1,"metadata":{},"records":[[1]]}]}'
    for text in (b"{}", b'{"commits":[],"written_bytes":[]}', short, b"\x00"):
        with pytest.raises(ValueError):
            decode_body(text)


@pytest.fixture
def manifest() -> Manifest:
    volumes = [VolumeConfig(path=Path(f"/drive{i}")) for i in range(2)]
    layout = plan_layout(small_records(3), volumes, stripe_bytes=8192)
    return Manifest(
        uuid=UUID(int=3), name="job", volume_index=1, layout=layout, description={"a": [1]}
    )


def test_a_manifest_comes_back(manifest: Manifest) -> None:
    encoded = encode_manifest(manifest)
    assert decode_manifest(encoded, where="here") == manifest
    assert json.loads(encoded)["version"] == 2


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("format", "other", "is not a Headrace manifest"),
        ("version", 1, "version 1; this Headrace reads version 2"),
        ("uuid", "x", "damaged"),
        ("records", [{}], "damaged"),
        ("file_bytes", [10, 10], "leaves the file"),
        ("stripe_bytes", 5000, "do not fit"),
    ],
)
def test_a_manifest_that_lies_is_refused(
    manifest: Manifest, key: str, value: object, match: str
) -> None:
    values = json.loads(encode_manifest(manifest))
    values[key] = value
    with pytest.raises(Incompatible, match=match):
        decode_manifest(json.dumps(values).encode(), where="here")


def test_pages_are_laid_out_as_the_documentation_says() -> None:
    uuid = UUID(bytes=bytes(range(16)))
    header = encode_header(
        Header(uuid=uuid, volume_index=5, num_volumes=6, manifest_hash=0x1122334455667788)
    )
    superblock = encode_superblock(
        Superblock(
            uuid=uuid, sequence=11, generation=7, step=8, body_hash=9, body_bytes=10, body_copy=1
        )
    )
    [record] = small_records(1)
    trailer = encode_trailer(
        Trailer(
            uuid=uuid, record_index=1, extent_index=0, generation=2, step=3, checksums=(4, 2**63)
        ),
        record,
    )
    assert (header[:8], superblock[:8], trailer[:8]) == (b"HEADRACE", b"HRCOMMIT", b"HRRECORD")
    for page in (header, superblock, trailer):
        assert _number(page, 8, 4) == 2
        assert page[16:32] == uuid.bytes
        assert _number(page, 4092, 4) == zlib.crc32(page[:4092])
    assert [_number(header, at, 4) for at in (32, 36)] == [5, 6]
    assert _number(header, 40, 8) == 0x1122334455667788
    assert [_number(superblock, at, 8) for at in (32, 40, 48)] == [7, 8, 9]
    assert [_number(superblock, at, 4) for at in (56, 60)] == [10, 1]
    assert _number(superblock, 64, 8) == 11
    assert [_number(trailer, at, 4) for at in (32, 36, 64)] == [1, 0, 2]
    assert [_number(trailer, at, 8) for at in (40, 48, 56)] == [2, 3, record.padded_bytes]
    assert [_number(trailer, at, 8) for at in (72, 80)] == [4, 2**63]


def _number(page: bytes, offset: int, size: int) -> int:
    return int.from_bytes(page[offset : offset + size], "little")
