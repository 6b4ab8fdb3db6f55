"""Which version of a record is committed, which is being written, and who must wait for whom.

Pure bookkeeping: no bytes move here, and the caller holds the store's lock.
"""

from collections.abc import Callable, Sequence

from .body import LiveRecord
from .commit import Version
from .errors import Misuse, NotCommitted
from .future import IoFuture
from .layout import Layout


class Generations:
    """The versions of every record of one store, by record index.

    `pinned` tells which extents of a record kept commits need.
    """

    def __init__(
        self,
        layout: Layout,
        committed: dict[int, Version],
        pinned: Callable[[int], set[int]],
    ) -> None:
        self._layout = layout
        self._pinned = pinned
        self._chosen: dict[int, int] = {}  # the extent that the working version of a record takes
        self.committed = committed
        self.working: dict[int, Version] = {}
        self._on_disk = {(i, one.extent_index): one for i, one in committed.items()}
        self.writes: dict[int, IoFuture] = {}  # the newest write of each record since the commit
        self.epoch = 0  # grows with every commit and abort: tells late writes from current ones
        self._readers: dict[tuple[int, int], list[IoFuture]] = {}
        self._writers: dict[tuple[int, int], list[IoFuture]] = {}

    def extent_to_write(self, index: int) -> int:
        """The extent that no commit needs, the same until `settle`; Misuse for a fixed record."""
        if index not in self._chosen:
            self._chosen[index] = self._free_extent(index)
        return self._chosen[index]

    def _free_extent(self, index: int) -> int:
        version = self.committed.get(index)
        live = set() if version is None else {version.extent_index}
        taken = live | self._pinned(index)
        record, count = self._layout.records[index], len(self._layout.extents[index])
        if taken and not record.mutable:
            raise Misuse(f"record {record.name!r} is read-only and was committed before")
        first = 0 if version is None else version.extent_index + 1
        turns = ((first + i) % count for i in range(count))
        return next(extent for extent in turns if extent not in taken)

    def extent_to_read(self, index: int, *, committed: bool) -> int:
        """The extent of the newest version, or of the committed one; NotCommitted without one."""
        if not committed and index in self.writes:
            return self.extent_to_write(index)
        version = self.committed.get(index)
        if version is None:
            name = self._layout.records[index].name
            raise NotCommitted(f"record {name!r} was never written; write it first")
        return version.extent_index

    def add_reader(self, index: int, extent: int, reader: IoFuture) -> Sequence[IoFuture]:
        """Note a read of an extent; the writes that must end before it may begin."""
        key = (index, extent)
        readers = [one for one in self._readers.get(key, []) if not one.done()]
        self._readers[key] = [*readers, reader]
        return list(self._writers.get(key, []))

    def add_writer(self, index: int, extent: int, writer: IoFuture) -> Sequence[IoFuture]:
        """Note a write into an extent; the reads and writes that must end before it may begin."""
        key = (index, extent)
        before = [*self._readers.pop(key, []), *self._writers.get(key, [])]
        self._writers[key] = [writer]
        self.writes[index] = writer
        return [one for one in before if not one.done()]

    def written(self, index: int, version: Version, epoch: int) -> None:
        """A write is over. One that was begun before an abort changes the extent, nothing more."""
        self._on_disk[index, version.extent_index] = version
        if epoch == self.epoch:
            self.working[index] = version

    def left_in(self, index: int, extent: int) -> Version | None:
        """What lies in an extent, as far as is known."""
        return self._on_disk.get((index, extent))

    def on_disk(self, index: int, extent: int) -> Version:
        """What the last finished write left in an extent."""
        return self._on_disk[index, extent]

    def entries(self) -> list[LiveRecord | None]:
        """Every record as a commit of the newest versions names it; None where there is none."""
        newest = self.committed | self.working
        return [
            newest[i].entry() if i in newest else None for i in range(len(self._layout.records))
        ]

    def checksums(self, index: int) -> tuple[int, ...]:
        """Of each tensor of a record, as committed; empty for one that never was."""
        version = self.committed.get(index)
        return () if version is None else version.trailer.checksums

    def settle(self, *, committed: bool) -> None:
        """The working generation becomes the committed one, or is forgotten."""
        if committed:
            self.committed.update(self.working)
        self.working.clear()
        self.writes.clear()
        self._chosen.clear()
        self.epoch += 1
