"""Where every byte of a store lies: extents of records, stripes over volumes. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .record import PAGE_BYTES, RecordSpec, round_up

KIB = 1024
MIB = 1024 * KIB
BLOCK_BYTES = 16 * MIB  # one system call, and one block of a checksum
STRIPE_BYTES = 16 * MIB
METADATA_LIMIT_BYTES = 64 * KIB
HEADER_OFFSET = 0
SUPERBLOCK_OFFSETS = (64 * KIB, 128 * KIB)
BODY_OFFSET = 256 * KIB  # two commit bodies of Layout.body_bytes each, one behind the other
_TRAILER_HEAD_BYTES = 256
_BODY_ENTRY_BYTES = 96  # more than one record's entry in a commit body can take


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Room for one version of a record and its trailer: on each volume one run of bytes.

    Stripe i of the record belongs to volume `deal[(first + i) % len(deal)]`; a volume's stripes
    follow one another from `starts[volume]`. A volume with `lengths[volume] == 0` takes no part.
    """

    first: int
    starts: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Record bytes `start` to `stop`, contiguous on one volume from `offset` on."""

    volume: int
    offset: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The geometry of a store. `extents[i]` are the extents of `records[i]`.

    A fixed record has one. A mutable one has two, and one more for each commit that can be kept.
    """

    records: tuple[RecordSpec, ...]
    extents: tuple[tuple[Extent, ...], ...]
    deal: tuple[int, ...]
    stripe_bytes: int
    block_bytes: int
    body_bytes: int
    file_bytes: tuple[int, ...]
    keep_generations: int = 0

    @property
    def num_volumes(self) -> int:
        """How many volumes the records are striped over."""
        return len(self.file_bytes)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(self.file_bytes)

    @property
    def generation_bytes(self) -> int:
        """What each kept commit takes: one more version of every mutable record."""
        return sum(extent_bytes(record) for record in self.records if record.mutable)

    def body_offset(self, copy: int) -> int:
        """Byte offset of commit body 0 or 1 in the first volume's file."""
        return BODY_OFFSET + copy * self.body_bytes

    def pieces(self, extent: Extent, start: int, stop: int) -> Iterator[Piece]:
        """Cut record bytes [start, stop) at blocks and stripes, in order."""
        while start < stop:
            end = min(stop, round_up(start + 1, self.block_bytes))
            volume, offset = self._place(extent, start)
            yield Piece(volume=volume, offset=offset, start=start, stop=end)
            start = end

    def _place(self, extent: Extent, position: int) -> tuple[int, int]:
        stripe, within = divmod(position, self.stripe_bytes)
        volume = _volume_of_stripe(self.deal, extent.first, stripe)
        before = _stripes_before(self.deal, extent.first, stripe, volume)
        return volume, extent.starts[volume] + before * self.stripe_bytes + within


def trailer_bytes(record: RecordSpec) -> int:
    """Bytes of the trailer behind a record: a fixed head and 8 bytes a tensor, in whole pages."""
    return round_up(_TRAILER_HEAD_BYTES + 8 * len(record.tensors), PAGE_BYTES)


def extent_bytes(record: RecordSpec) -> int:
    """Bytes of one version of a record on disk: its padded tensors and its trailer."""
    return record.padded_bytes + trailer_bytes(record)


def plan_layout(
    records: Sequence[RecordSpec],
    volumes: Sequence[object],
    *,
    stripe_bytes: int = STRIPE_BYTES,
    keep_generations: int = 0,
    deal: tuple[int, ...] | None = None,
) -> Layout:
    """Place records on volumes, which are only counted: the same arguments give the same layout.

    Stripes are dealt in turn, or in the order of `deal` (indexes of volumes, as often as their
    share asks for); each extent begins at the place in the deal after the one where the last
    extent ended, so that small records spread too. `keep_generations` commits can be kept beside
    the live one. ValueError for names given twice, no records, no volumes, or a stripe that is
    not whole pages.
    """
    _check_plan(records, volumes, stripe_bytes, keep_generations)
    deal = deal or tuple(range(len(volumes)))
    one_commit = METADATA_LIMIT_BYTES + _BODY_ENTRY_BYTES * len(records)
    body_bytes = round_up((1 + keep_generations) * one_commit + PAGE_BYTES, PAGE_BYTES)
    ends = [BODY_OFFSET + 2 * body_bytes] * len(volumes)
    first = 0
    extents = []
    for record in records:
        versions = []
        for _ in range(2 + keep_generations if record.mutable else 1):
            versions.append(_place_extent(extent_bytes(record), deal, first, stripe_bytes, ends))
        num_stripes = -(-extent_bytes(record) // stripe_bytes)
        first = (first + num_stripes) % len(deal)
        extents.append(tuple(versions))
    return Layout(
        records=tuple(records),
        extents=tuple(extents),
        deal=deal,
        stripe_bytes=stripe_bytes,
        block_bytes=min(BLOCK_BYTES, stripe_bytes),
        body_bytes=body_bytes,
        file_bytes=tuple(round_up(end, 64 * KIB) for end in ends),
        keep_generations=keep_generations,
    )


def validate_layout(layout: Layout) -> None:
    """Refuse a layout whose extents are misaligned, too short, overlapping or out of the file.

    ValueError names the record. A layout that passes can be read and written safely.
    """
    if layout.stripe_bytes % layout.block_bytes or layout.block_bytes % PAGE_BYTES:
        raise ValueError(f"stripe {layout.stripe_bytes} and block {layout.block_bytes} do not fit")
    if len(layout.extents) != len(layout.records):
        raise ValueError(f"{len(layout.extents)} extents for {len(layout.records)} records")
    taken: list[list[tuple[int, int]]] = [
        [(0, BODY_OFFSET + 2 * layout.body_bytes)] for _ in layout.file_bytes
    ]
    for record, extents in zip(layout.records, layout.extents, strict=True):
        if len(extents) < (2 + layout.keep_generations if record.mutable else 1):
            raise ValueError(f"record {record.name!r} has only {len(extents)} extents")
        for extent in extents:
            _validate_extent(layout, record, extent)
            for volume, (start, length) in enumerate(
                zip(extent.starts, extent.lengths, strict=True)
            ):
                taken[volume].append((start, start + length))
    for volume, ranges in enumerate(taken):
        ranges.sort()
        for (_, stop), (start, _) in zip(ranges, ranges[1:], strict=False):
            if start < stop:
                raise ValueError(f"volume {volume}: two extents share byte {start}")


def _validate_extent(layout: Layout, record: RecordSpec, extent: Extent) -> None:
    if len(extent.starts) != layout.num_volumes or len(extent.lengths) != layout.num_volumes:
        raise ValueError(f"record {record.name!r}: an extent does not name every volume")
    wanted = _share_lengths(
        extent_bytes(record), layout.deal, extent.first, layout.stripe_bytes, layout.num_volumes
    )
    for volume in range(layout.num_volumes):
        start, length = extent.starts[volume], extent.lengths[volume]
        if length < wanted[volume] or start % PAGE_BYTES:
            raise ValueError(f"record {record.name!r}: bad extent on volume {volume}")
        if start < 0 or start + length > layout.file_bytes[volume]:
            raise ValueError(f"record {record.name!r}: extent leaves the file of volume {volume}")


def _check_plan(
    records: Sequence[RecordSpec],
    volumes: Sequence[object],
    stripe_bytes: int,
    keep_generations: int,
) -> None:
    if keep_generations < 0:
        raise ValueError(f"a store cannot keep {keep_generations} commits; wanted 0 or more")
    names = [record.name for record in records]
    if not names or not volumes:
        raise ValueError(f"a store needs records and volumes; got {len(names)} and {len(volumes)}")
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"records named twice: {', '.join(twice)}")
    if stripe_bytes < PAGE_BYTES or stripe_bytes % min(BLOCK_BYTES, stripe_bytes):
        raise ValueError(f"stripe_bytes {stripe_bytes} is not a multiple of {BLOCK_BYTES}")
    if stripe_bytes % PAGE_BYTES:
        raise ValueError(f"stripe_bytes {stripe_bytes} is not whole pages of {PAGE_BYTES} bytes")


def _place_extent(
    num_bytes: int, deal: tuple[int, ...], first: int, stripe_bytes: int, ends: list[int]
) -> Extent:
    """Append one extent to the files that end at `ends`, which move on."""
    lengths = _share_lengths(num_bytes, deal, first, stripe_bytes, len(ends))
    starts = []
    for volume, length in enumerate(lengths):
        start = round_up(ends[volume], _alignment(length)) if length else ends[volume]
        starts.append(start)
        ends[volume] = start + length
    return Extent(first=first, starts=tuple(starts), lengths=tuple(lengths))


def _alignment(length: int) -> int:
    """Whole huge pages for large extents, less for small ones: the gap stays near 3 %."""
    if length >= 64 * MIB:
        return 2 * MIB
    return 64 * KIB if length >= 2 * MIB else PAGE_BYTES


def _share_lengths(
    num_bytes: int, deal: tuple[int, ...], first: int, stripe_bytes: int, num_volumes: int
) -> list[int]:
    """Bytes of a record of `num_bytes` that fall to each volume."""
    full, rest = divmod(num_bytes, stripe_bytes)
    lengths = [
        _stripes_before(deal, first, full, volume) * stripe_bytes for volume in range(num_volumes)
    ]
    if rest:
        lengths[_volume_of_stripe(deal, first, full)] += rest
    return lengths


def _volume_of_stripe(deal: tuple[int, ...], first: int, stripe: int) -> int:
    return deal[(first + stripe) % len(deal)]


def _stripes_before(deal: tuple[int, ...], first: int, stripe: int, volume: int) -> int:
    """How many of the stripes 0 to `stripe` - 1 belong to `volume`."""
    rounds, rest = divmod(stripe, len(deal))
    partial = sum(_volume_of_stripe(deal, first, i) == volume for i in range(rest))
    return rounds * deal.count(volume) + partial
