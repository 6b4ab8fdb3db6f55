"""The loop that hides the drive: a reader, the compute thread and a writer over a ring of slots."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

V = TypeVar("V")
S = TypeVar("S")
Stage = Callable[[V, S], None]


@dataclass(slots=True)
class VisitTimes:
    """Seconds that one visit spent in each stage, and waiting between them."""

    read: float = 0.0
    compute: float = 0.0
    write: float = 0.0
    stall_read: float = 0.0  # the compute thread waited for the read
    stall_write: float = 0.0  # the reader waited for the slot's last write
    finished: float = 0.0  # when compute ended (perf_counter)


def run_pass(
    visits: Sequence[V],
    slots: Sequence[S],
    *,
    read: Stage[V, S],
    compute: Stage[V, S],
    write: Stage[V, S],
    follows: Sequence[int | None] | None = None,
) -> list[VisitTimes]:
    """Compute visit i while the reader fills the slots ahead and the writer drains those behind.

    The ring is the only bound on memory: a slot is read into again only after its last write has
    finished. Visit i is read only after the write of visit `follows[i]`, an earlier one. A failure
    in any stage is raised here, after every started stage has ended.
    """
    writes: list[Future[None]] = []
    times = [VisitTimes() for _ in visits]
    written: list[Future[None]] = [Future() for _ in visits]

    def timed_read(i: int) -> None:
        started = perf_counter()
        if i >= len(slots):
            written[i - len(slots)].result()
        if follows is not None and (earlier := follows[i]) is not None:
            written[earlier].result()
        waited = perf_counter()
        read(visits[i], slots[i % len(slots)])
        times[i].stall_write = waited - started
        times[i].read = perf_counter() - waited

    def timed_write(i: int) -> None:
        started = perf_counter()
        with settling(written[i]):
            write(visits[i], slots[i % len(slots)])
        times[i].write = perf_counter() - started

    with ThreadPoolExecutor(1, "reader") as reader, ThreadPoolExecutor(1, "writer") as writer:
        reads = [reader.submit(timed_read, i) for i in range(min(len(slots), len(visits)))]
        try:
            for i, visit in enumerate(visits):
                started = perf_counter()
                reads[i].result()
                arrived = perf_counter()
                compute(visit, slots[i % len(slots)])
                times[i].finished = perf_counter()
                times[i].stall_read = arrived - started
                times[i].compute = times[i].finished - arrived
                writes.append(writer.submit(timed_write, i))
                if len(reads) < len(visits):
                    reads.append(reader.submit(timed_read, len(reads)))
            for done in writes:
                done.result()
        finally:
            # After a failure, reads that have not started, and those that wait for a write that
            # will not come, would only wait for a dead loop.
            for pending in (*reads, *writes, *written):
                pending.cancel()
    return times


@contextmanager
def settling(future: Future[None]) -> Iterator[None]:
    """Give the future its result, or the exception that ends the body."""
    try:
        yield
    except BaseException as error:
        future.set_exception(error)
        raise
    future.set_result(None)
