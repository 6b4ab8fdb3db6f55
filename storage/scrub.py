"""Reading everything that is committed, to find damage before it is needed."""

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from .checksum import Digests
from .errors import StoreError
from .future import Patience, wait_for
from .layout import Piece
from .operation import Target, check_sums, error_of, move_pieces
from .trailer import Trailer
from .volume import page_buffer

Progress = Callable[[int, int], None]  # bytes done, bytes in all
_NUM_BUFFERS = 2


def scrub(
    targets: Sequence[tuple[Target, Trailer]], patience: Patience, progress: Progress | None
) -> list[str]:
    """Check records one by one, behind all other reads; what is wrong, in words.

    Two blocks of memory are used, whatever the size of the records.
    """
    buffers: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
    problems = []
    done, total = 0, sum(target.record.padded_bytes for target, _ in targets)
    for target, trailer in targets:
        while buffers.qsize() < _NUM_BUFFERS:
            buffers.put(memoryview(page_buffer(target.layout.block_bytes)))
        try:
            _check_record(target, trailer, buffers, patience)
        except StoreError as error:
            problems.append(f"record {target.record.name!r}: {error}")
        done += target.record.padded_bytes
        if progress is not None:
            progress(done, total)
    return problems


def _check_record(
    target: Target,
    trailer: Trailer,
    buffers: "queue.SimpleQueue[memoryview]",
    patience: Patience,
) -> None:
    digests: Digests = {}
    outcome: Future[None] = Future()

    def work(piece: Piece) -> None:
        buffer = buffers.get()
        try:
            part = buffer[: piece.stop - piece.start]
            target.drives[piece.volume].volume.read(piece.offset, part)
            digests.update(target.spans.digest(piece.start, part))
        finally:
            buffers.put(buffer)

    def ended(error: BaseException | None) -> None:
        error = error or error_of(lambda: check_sums(target, digests, trailer, None))
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)

    move_pieces(target, target.record.runs(), "scrub", work, may_begin=lambda: True, ended=ended)
    wait_for(outcome, f"check of record {target.record.name!r}", patience)
