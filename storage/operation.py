"""One record between a slot and its extent: calls on every volume, checked as the bytes pass."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .checksum import Digests, Spans, hash_bytes
from .errors import Corrupt
from .future import Buffer, IoFuture
from .io_queue import Call, IoQueue, Kind
from .layout import Extent, Layout, Piece, trailer_bytes
from .record import RecordSpec
from .trailer import Trailer, encode_trailer
from .volume import Volume, page_buffer

Ended = Callable[[BaseException | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """A volume's file, and the threads that serve it."""

    volume: Volume
    queue: IoQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A record, one extent of it, and what is needed to reach it."""

    layout: Layout
    drives: Sequence[Drive]
    record: RecordSpec
    spans: Spans
    extent: Extent


class _Countdown:
    """Ends once `count` calls have ended; keeps the first error."""

    def __init__(self, count: int, ended: Ended) -> None:
        self._left = count
        self._ended = ended
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    @property
    def failed(self) -> bool:
        return self._error is not None

    def one(self, error: BaseException | None) -> None:
        with self._lock:
            self._error = self._error or error
            self._left -= 1
            last = self._left == 0
        if last:
            self._ended(self._error)


def move_pieces(
    target: Target,
    runs: Sequence[tuple[int, int]],
    kind: Kind,
    work: Callable[[Piece], None],
    *,
    may_begin: Callable[[], bool],
    ended: Ended,
) -> None:
    """Queue `work` for every piece of `runs`; `ended` hears once that nothing is under way.

    After a failure the pieces not yet begun are skipped.
    """
    pieces = [piece for run in runs for piece in target.layout.pieces(target.extent, *run)]
    countdown = _Countdown(len(pieces) + 1, ended)

    def do(piece: Piece) -> None:
        if may_begin() and not countdown.failed:
            work(piece)

    for piece in pieces:
        call = Call(
            kind=kind,
            work=lambda piece=piece: do(piece),  # type: ignore[misc]
            ended=countdown.one,
            num_bytes=piece.stop - piece.start,
            payload_bytes=target.spans.payload_bytes(piece.start, piece.stop),
        )
        target.drives[piece.volume].queue.submit(call)
    countdown.one(None)


def read_record(
    target: Target,
    slot: Buffer,
    future: IoFuture,
    *,
    tensors: Sequence[str] | None,
    trailer: Callable[[], Trailer],
) -> None:
    """Fill the slot with the named tensors and check them; the future ends with the last byte.

    `trailer` is asked for when the bytes are there.
    """
    digests: Digests = {}
    view = slot.view

    def work(piece: Piece) -> None:
        part = view[piece.start : piece.stop]
        target.drives[piece.volume].volume.read(piece.offset, part)
        digests.update(target.spans.digest(piece.start, part))

    def ended(error: BaseException | None) -> None:
        if error is None and not future.done():
            error = error_of(lambda: check_sums(target, digests, trailer(), tensors))
        future.finish(error)

    runs = target.record.runs(tensors)
    move_pieces(target, runs, "read", work, may_begin=future.begin, ended=ended)


def write_record(
    target: Target,
    slot: Buffer,
    future: IoFuture,
    *,
    stamp: Trailer,
    written: Callable[[Trailer, int], None],
) -> None:
    """Write the record, then its trailer; `written` hears of it, with the hash of the trailer,
    before the future ends.

    `stamp` is the trailer without checksums.
    """
    digests: Digests = {}
    view = slot.view

    def work(piece: Piece) -> None:
        part = view[piece.start : piece.stop]
        digests.update(target.spans.digest(piece.start, part))
        target.drives[piece.volume].volume.write(piece.offset, part)

    def ended(error: BaseException | None) -> None:
        if error is None and not future.done():
            error = error_of(seal)
            if error is None:
                return  # the end of the trailer's write will be the future's
        future.finish(error)

    def seal() -> None:
        sums = (
            target.spans.checksum(i, digests, target.layout.block_bytes)
            for i in range(len(target.record.tensors))
        )
        made = replace(stamp, checksums=tuple(sums))
        pages = encode_trailer(made, target.record)

        def trailer_ended(error: BaseException | None) -> None:
            if error is None and not future.done():
                error = error_of(lambda: written(made, hash_bytes(pages)))
            future.finish(error)

        _write_trailer(target, pages, trailer_ended)

    runs = target.record.runs()
    move_pieces(target, runs, "write", work, may_begin=future.begin, ended=ended)


def read_trailer(target: Target, ended: Ended) -> memoryview:
    """Queue the read of an extent's trailer; the memory returned is filled once `ended` hears."""
    buffer = memoryview(page_buffer(trailer_bytes(target.record)))
    start, stop = _trailer_run(target)

    def work(piece: Piece) -> None:
        part = buffer[piece.start - start : piece.stop - start]
        target.drives[piece.volume].volume.read(piece.offset, part)

    move_pieces(target, [(start, stop)], "read", work, may_begin=lambda: True, ended=ended)
    return buffer


def error_of(call: Callable[[], None]) -> BaseException | None:
    """Call, and return what it raises: in a thread of the queue nobody else would hear of it."""
    try:
        call()
    except BaseException as error:
        return error
    return None


def check_sums(
    target: Target, digests: Digests, trailer: Trailer, tensors: Sequence[str] | None
) -> None:
    """Compare what passed with the trailer, for the named tensors (all when None); or Corrupt."""
    for i, tensor in enumerate(target.record.tensors):
        if tensors is not None and tensor.name not in tensors:
            continue
        found = target.spans.checksum(i, digests, target.layout.block_bytes)
        if found != trailer.checksums[i]:
            raise Corrupt(
                f"record {target.record.name!r}, tensor {tensor.name!r} of generation "
                f"{trailer.generation}, {place_of(target, tensor.name)}: checksum "
                f"{found:016x}, wanted {trailer.checksums[i]:016x}; go back to a checkpoint"
            )


def place_of(target: Target, tensor: str) -> str:
    """Where a tensor begins, in words."""
    start = target.record.offset(tensor)
    piece = next(target.layout.pieces(target.extent, start, start + 1))
    return f"volume {target.drives[piece.volume].queue.name}, byte {piece.offset}"


def _write_trailer(target: Target, pages: bytes, ended: Ended) -> None:
    buffer = page_buffer(len(pages))
    buffer[: len(pages)] = pages
    view = memoryview(buffer)
    start, stop = _trailer_run(target)

    def work(piece: Piece) -> None:
        part = view[piece.start - start : piece.stop - start]
        target.drives[piece.volume].volume.write(piece.offset, part)

    move_pieces(target, [(start, stop)], "write", work, may_begin=lambda: True, ended=ended)


def _trailer_run(target: Target) -> tuple[int, int]:
    start = target.record.padded_bytes
    return start, start + trailer_bytes(target.record)
