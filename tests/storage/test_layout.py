"""Where bytes lie: nothing overlaps, nothing is lost, and the same plan gives the same place."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage import PAGE_BYTES, RecordSpec, TensorSpec, VolumeConfig, plan_layout
from headrace.storage.config import parse_bytes
from headrace.storage.layout import (
    SUPERBLOCK_OFFSETS,
    Layout,
    extent_bytes,
    trailer_bytes,
    validate_layout,
)

tensor_sizes = st.lists(st.integers(0, 40_000), min_size=1, max_size=4)


def _record(i: int, sizes: list[int], mutable: bool) -> RecordSpec:
    tensors = tuple(
        TensorSpec(name=f"t{j}", dtype="uint8", shape=(size,)) for j, size in enumerate(sizes)
    )
    return RecordSpec(name=f"r{i}", tensors=tensors, mutable=mutable)


def _volumes(count: int) -> list[VolumeConfig]:
    return [VolumeConfig(path=Path(f"/drive{i}")) for i in range(count)]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Layouts of up to 6 small records over 1 to 4 volumes."""
    shapes = draw(st.lists(st.tuples(tensor_sizes, st.booleans()), min_size=1, max_size=6))
    records = [_record(i, sizes, mutable) for i, (sizes, mutable) in enumerate(shapes)]
    stripe_bytes = draw(st.sampled_from([4096, 8192, 65536]))
    return plan_layout(records, _volumes(draw(st.integers(1, 4))), stripe_bytes=stripe_bytes)


@settings(max_examples=60, deadline=None)
@given(layouts())
def test_every_byte_of_every_version_has_a_place_of_its_own(layout: Layout) -> None:
    validate_layout(layout)
    first_free = layout.body_offset(2)
    taken: set[tuple[int, int]] = set()
    for record, extents in zip(layout.records, layout.extents, strict=True):
        assert len(extents) == (2 if record.mutable else 1)
        for extent in extents:
            position = 0
            for piece in layout.pieces(extent, 0, extent_bytes(record)):
                assert piece.start == position
                assert piece.offset >= first_free
                position = piece.stop
                pages = range(piece.offset // PAGE_BYTES, -(-_end(piece) // PAGE_BYTES))
                fresh = {(piece.volume, page) for page in pages}
                assert not fresh & taken
                taken |= fresh
                assert _end(piece) <= layout.file_bytes[piece.volume]
            assert position == extent_bytes(record)


def _end(piece: "object") -> int:
    return piece.offset + piece.stop - piece.start  # type: ignore[attr-defined, no-any-return]


@settings(max_examples=60, deadline=None)
@given(layouts(), st.data())
def test_a_part_of_a_record_lies_where_the_whole_says(layout: Layout, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(layout.records) - 1))
    extent = layout.extents[index][-1]
    total = extent_bytes(layout.records[index])
    start = data.draw(st.integers(0, total // PAGE_BYTES - 1)) * PAGE_BYTES
    [first, *_] = layout.pieces(extent, start, total)
    around = [one for one in layout.pieces(extent, 0, total) if one.start <= start < one.stop]
    assert [one.offset + start - one.start for one in around] == [first.offset]
    assert first.volume == around[0].volume


def test_the_same_arguments_give_the_same_layout() -> None:
    records = [_record(i, [100_000, 5], True) for i in range(5)]
    volumes = _volumes(3)
    assert plan_layout(records, volumes) == plan_layout(records, volumes)


def test_small_records_are_spread_over_the_volumes() -> None:
    records = [_record(i, [8192], True) for i in range(9)]
    layout = plan_layout(records, _volumes(3))
    assert max(layout.file_bytes) - min(layout.file_bytes) <= 64 << 10


def test_large_extents_start_on_huge_pages() -> None:
    tensors = (TensorSpec(name="w", dtype="uint8", shape=(100 << 20,)),)
    records = [RecordSpec(name=f"r{i}", tensors=tensors) for i in range(3)]
    layout = plan_layout(records, _volumes(1))
    starts = [extent.starts[0] for extents in layout.extents for extent in extents]
    assert all(start % (2 << 20) == 0 for start in starts)
    payload = 2 * sum(record.payload_bytes for record in records)
    assert layout.total_bytes < 1.05 * payload


def test_a_trailer_holds_a_checksum_for_every_tensor() -> None:
    assert trailer_bytes(_record(0, [1], True)) == 4096
    assert trailer_bytes(_record(0, [1] * 1000, True)) == 12288


@pytest.mark.parametrize("bad", ["overlap", "superblock", "end", "short", "misaligned"])
def test_a_manifest_cannot_point_a_write_at_the_wrong_place(bad: str) -> None:
    layout = plan_layout([_record(i, [50_000], True) for i in range(2)], _volumes(1))
    one, two = layout.extents[0]
    wrong = {
        "overlap": replace(two, starts=(one.starts[0] + PAGE_BYTES,)),
        "superblock": replace(two, starts=(SUPERBLOCK_OFFSETS[1],)),
        "end": replace(two, starts=(layout.file_bytes[0],)),
        "short": replace(two, lengths=(PAGE_BYTES,)),
        "misaligned": replace(two, starts=(two.starts[0] + 512,)),
    }[bad]
    with pytest.raises(ValueError, match="extent"):
        validate_layout(replace(layout, extents=((one, wrong), layout.extents[1])))


def test_a_plan_without_sense_is_refused() -> None:
    record = _record(0, [10], True)
    with pytest.raises(ValueError, match="needs records and volumes"):
        plan_layout([], _volumes(1))
    with pytest.raises(ValueError, match="named twice: r0"):
        plan_layout([record, record], _volumes(1))
    with pytest.raises(ValueError, match="stripe_bytes"):
        plan_layout([record], _volumes(1), stripe_bytes=(16 << 20) + 4096)


@pytest.mark.parametrize(
    ("text", "path", "limit"),
    [
        ("/data", "/data", None),
        ("/data:500MB", "/data", 500_000_000),
        ("/data:2GiB", "/data", 2 << 30),
        ("/data:1.5 GB", "/data", 1_500_000_000),
        ("/data:4096", "/data", 4096),
        ("/odd:name/here", "/odd:name/here", None),
    ],
)
def test_a_volume_is_read_from_one_word(text: str, path: str, limit: int | None) -> None:
    assert VolumeConfig.parse(text) == VolumeConfig(path=Path(path), limit_bytes=limit)


@pytest.mark.parametrize("text", ["/data:", "/data:many", "/data:-5", "/data:5XB"])
def test_a_limit_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        VolumeConfig.parse(text)


def test_sizes_follow_their_units() -> None:
    assert [parse_bytes(one) for one in ("1k", "1KiB", "1T", "1TiB")] == [
        1000, 1024, 10**12, 2**40]  # fmt: skip
