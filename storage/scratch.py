"""Scratch beside a store: bytes that are read again before the process ends, and then forgotten.

On each volume it is a file without a name, reserved at once, so that space cannot run out later
and comes back however the process ends. Nothing of it is committed or synced.
"""

import threading
from functools import partial
from typing import Self

from .checksum import Digests, Spans
from .drives import DriveSet
from .errors import Corrupt, Misuse
from .future import Buffer, IoFuture
from .layout import Piece
from .operation import Target, error_of, move_pieces
from .record import PAGE_BYTES, round_up
from .space import scratch_layout
from .underway import UnderWay


class Scratch:
    """`num_bytes` of scratch, addressed from 0; any thread may call. A context manager."""

    def __init__(
        self, drives: DriveSet, num_bytes: int, *, reserve_bytes: int | None = None
    ) -> None:
        """Use TensorStore.open_scratch."""
        self.num_bytes = num_bytes
        self._drives = drives
        self._layout = scratch_layout(drives.layout, num_bytes)
        self._files = drives.scratch_drives(self._layout, reserve_bytes=reserve_bytes)
        self._under_way = UnderWay(drives)
        self._sums: dict[tuple[int, int], int] = {}  # (offset, bytes) -> checksum, once written
        self._lock = threading.Lock()
        self._closed = False

    def write(self, offset: int, slot: Buffer, num_bytes: int) -> IoFuture:
        """Start to write the first `num_bytes` of the slot at byte `offset`, a multiple of 4 KiB.

        They take whole pages. The future ends when they can be read; writes that overlap must not
        be under way together. Misuse for what does not lie in the scratch, or a slot too small.
        """
        future, target = self._begin("write", offset, slot, num_bytes)
        digests: Digests = {}
        view = slot.view

        def work(piece: Piece) -> None:
            part = view[piece.start - offset : piece.stop - offset]
            digests.update(target.spans.digest(piece.start, part))
            target.drives[piece.volume].volume.write(piece.offset, part)

        def ended(error: BaseException | None) -> None:
            if error is None:
                error = error_of(partial(self._written, target, offset, num_bytes, digests))
            future.finish(error)

        move_pieces(
            target, [_pages(offset, num_bytes)], "write", work,
            may_begin=future.begin, ended=ended,
        )  # fmt: skip
        return future

    def read(self, offset: int, slot: Buffer, num_bytes: int) -> IoFuture:
        """Start to read what was written at byte `offset`, as long as it was written.

        The future raises Corrupt when other bytes come back; Misuse when nothing was written there.
        """
        with self._lock:
            wanted = self._sums.get((offset, num_bytes))
        if wanted is None:
            raise Misuse(f"{num_bytes} bytes of scratch from byte {offset} on were not written")
        future, target = self._begin("read", offset, slot, num_bytes)
        digests: Digests = {}
        view = slot.view

        def work(piece: Piece) -> None:
            part = view[piece.start - offset : piece.stop - offset]
            target.drives[piece.volume].volume.read(piece.offset, part)
            digests.update(target.spans.digest(piece.start, part))

        def ended(error: BaseException | None) -> None:
            if error is None:
                error = error_of(partial(_check, target, offset, digests, wanted))
            future.finish(error)

        move_pieces(
            target, [_pages(offset, num_bytes)], "read", work,
            may_begin=future.begin, ended=ended,
        )  # fmt: skip
        return future

    def close(self) -> None:
        """Wait for what is under way and give the space back."""
        if self._closed:
            return
        self._closed = True
        if self._under_way.ended(self._drives.patience.timeout_seconds):
            for file in self._files:
                file.volume.close()
        else:  # the file stays open until the process ends: bytes may still arrive
            self._under_way.give_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _begin(
        self, what: str, offset: int, slot: Buffer, num_bytes: int
    ) -> tuple[IoFuture, Target]:
        start, stop = _pages(offset, num_bytes)
        if self._closed or offset % PAGE_BYTES or not 0 <= start < stop:
            raise Misuse(f"{what} of {num_bytes} bytes of scratch at {offset}: closed, or no pages")
        if stop > round_up(self.num_bytes, PAGE_BYTES):
            raise Misuse(
                f"{what} of scratch ends at byte {stop}; there are {self.num_bytes} bytes of it"
            )
        self._drives.check_slot(slot, "scratch", stop - start)
        target = Target(
            layout=self._layout,
            drives=self._files,
            record=self._layout.records[0],
            spans=Spans(((offset, offset + num_bytes),)),
            extent=self._layout.extents[0][0],
        )
        return self._under_way.new(f"{what} of scratch", slot, f"nvme_{what}"), target

    def _written(self, target: Target, offset: int, num_bytes: int, digests: Digests) -> None:
        checksum = target.spans.checksum(0, digests, target.layout.block_bytes)
        with self._lock:
            self._sums[offset, num_bytes] = checksum


def _pages(offset: int, num_bytes: int) -> tuple[int, int]:
    """The bytes that are moved: whole pages."""
    return offset, offset + round_up(num_bytes, PAGE_BYTES)


def _check(target: Target, offset: int, digests: Digests, wanted: int) -> None:
    found = target.spans.checksum(0, digests, target.layout.block_bytes)
    if found != wanted:
        piece = next(target.layout.pieces(target.extent, offset, offset + 1))
        raise Corrupt(
            f"scratch on volume {target.drives[piece.volume].queue.name}, byte {piece.offset}: "
            f"checksum {found:016x}, wanted {wanted:016x}; look at the drive, and resume from the "
            "last commit"
        )
