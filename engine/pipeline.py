"""The loop that hides the drive: a reader, the compute thread and two writers over a ring of slots.

The threads and the ring outlive a pass: what the next pass begins with can be read while this one
still computes.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from .visits import Visit, num_ahead

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)


class Stages(Protocol[S_contra]):
    """What happens to a record before and after compute."""

    def needs_slot(self, visit: Visit) -> bool:
        """Whether the visit's record passes through a slot at all."""
        ...

    def read(self, visit: Visit, slot: S_contra) -> None:
        """Bring what the visit reads into the slot. Called in the reader thread."""
        ...

    def release(self, visit: Visit, slot: S_contra) -> Callable[[], None]:
        """Begin to bring an updated record home; when it returns, the slot may be read into.

        What is left of the write is the function returned, called in a thread of its own.
        """
        ...


@dataclass(slots=True)
class VisitTimes:
    """Seconds that one visit spent in each stage, and waiting between them."""

    read: float = 0.0
    compute: float = 0.0
    write: float = 0.0
    stall_read: float = 0.0  # the compute thread waited for the read
    stall_write: float = 0.0  # the reader waited for a free slot, or for the record's last write

    @property
    def waited_for_write(self) -> float:
        """Of `stall_read`, what passed before the reader had a slot to read into.

        A reader that waits ahead of compute holds nothing up.
        """
        return min(self.stall_write, max(0.0, self.stall_read - self.read))


@dataclass(slots=True, eq=False)
class _Job(Generic[S]):
    """One visit on its way through the stages."""

    visit: Visit
    follows: "Future[None] | None"  # the record's last write
    holder: "_Job[S] | None"  # the visit whose slot this one takes over
    slot: S | None = None
    read: "Future[None]" = field(default_factory=Future)
    written: "Future[None]" = field(default_factory=Future)
    times: VisitTimes = field(default_factory=VisitTimes)

    def let_go(self) -> None:
        """Forget the outcomes: an error that they hold would hold, by the frames it came through,
        them, the slot and with it the device's memory until the garbage collector comes by."""
        self.read, self.written, self.follows = Future(), Future(), None
        self.slot = None


class Pipeline(Generic[S]):
    """A ring of slots with its threads, which `close` ends."""

    def __init__(self, slots: Sequence[S], stages: Stages[S]) -> None:
        """`slots` are used in turn; a slot is read into again only after its release."""
        self._stages = stages
        self._num_slots = len(slots)
        self._free = _FreeSlots(slots)
        self._reader = ThreadPoolExecutor(1, "reader")
        self._releaser = ThreadPoolExecutor(1, "writer")
        self._writer = ThreadPoolExecutor(1, "writer")
        self._last_write: dict[int, Future[None]] = {}
        self._holders: dict[int, _Job[S]] = {}
        self._ahead: list[_Job[S]] = []

    def run(
        self,
        visits: Sequence[Visit],
        compute: Callable[[Visit, S | None], None],
        *,
        ahead: Sequence[Visit] = (),
    ) -> list[VisitTimes]:
        """Compute the visits in order, each with its slot (None when it needs none).

        A visit is read after the last write of its record. `ahead` are visits that the next pass
        will begin with, if nothing intervenes: they are read as soon as slots are free. A failure
        in any stage is raised here, and ends the pipeline.
        """
        jobs = self._take_ahead(visits)
        jobs += [self._submit(visit) for visit in visits[len(jobs) :]]
        self._ahead = self._submit_ahead(ahead)
        try:
            for job in jobs:
                started = perf_counter()
                job.read.result()
                arrived = perf_counter()
                compute(job.visit, job.slot)
                job.times.stall_read = arrived - started
                job.times.compute = perf_counter() - arrived
                self._releaser.submit(self._release, job)
            for job in jobs:
                job.written.result()
        except BaseException:
            # Reads that wait for a write that will not come would only wait for a dead loop.
            begun = (*jobs, *self._ahead)
            for job in begun:
                job.written.cancel()
            self.close()
            for job in begun:
                job.let_go()
            raise
        return [job.times for job in jobs]

    def close(self) -> None:
        """End the threads; what was read ahead is dropped, and every hold on a slot."""
        self._free.stop()
        for executor in (self._reader, self._releaser, self._writer):
            executor.shutdown(wait=True, cancel_futures=True)
        self._free.drop()
        self._ahead, self._holders, self._last_write = [], {}, {}

    def _submit(self, visit: Visit) -> _Job[S]:
        job = _Job[S](
            visit,
            follows=self._last_write.get(visit.record),
            holder=self._holders.pop(visit.record, None) if visit.held else None,
        )
        if visit.writes or visit.on_host:
            self._last_write[visit.record] = job.written
        if visit.holds:
            self._holders[visit.record] = job
        job.read = self._reader.submit(self._read, job)
        return job

    def _submit_ahead(self, visits: Sequence[Visit]) -> list[_Job[S]]:
        """Jobs for the visits that can be read before their pass begins, which it may never do."""
        count = num_ahead(visits, self._num_slots, self._stages.needs_slot)
        return [self._submit(visit) for visit in visits[:count]]

    def _take_ahead(self, visits: Sequence[Visit]) -> list[_Job[S]]:
        """What has been read ahead, when it is what these visits begin with; else it is dropped."""
        jobs, self._ahead = self._ahead, []
        if [job.visit for job in jobs] == list(visits[: len(jobs)]):
            return jobs
        self._drop(jobs)
        return []

    def wait_ahead(self) -> None:
        """Return when what is read ahead is there: until then its bytes are partly counted."""
        for job in self._ahead:
            job.read.result()

    def drop_ahead(self) -> None:
        """Forget what was read ahead: the state is about to change by another way."""
        jobs, self._ahead = self._ahead, []
        self._drop(jobs)

    def _drop(self, jobs: Sequence[_Job[S]]) -> None:
        for job in jobs:
            if not job.read.cancel():
                job.read.result()
                if job.slot is not None:
                    self._free.give(job.slot)
            if self._last_write.get(job.visit.record) is job.written:
                del self._last_write[job.visit.record]
        self._holders.clear()

    def _read(self, job: _Job[S]) -> None:
        if not self._stages.needs_slot(job.visit):
            return
        started = perf_counter()
        job.slot = self._free.take() if job.holder is None else job.holder.slot
        if job.follows is not None:
            job.follows.result()
        waited = perf_counter()
        assert job.slot is not None
        self._stages.read(job.visit, job.slot)
        job.times.stall_write = waited - started
        job.times.read = perf_counter() - waited

    def _release(self, job: _Job[S]) -> None:
        if job.slot is None:
            job.written.set_result(None)
            return
        started = perf_counter()
        with failing(job.written):
            finish = self._stages.release(job.visit, job.slot)
            if not job.visit.holds:
                self._free.give(job.slot)
            self._writer.submit(self._finish, job, finish, started)

    def _finish(self, job: _Job[S], finish: Callable[[], None], started: float) -> None:
        with failing(job.written):
            finish()
            job.times.write = perf_counter() - started
            job.written.set_result(None)


class Stopped(RuntimeError):
    """The pipeline has ended; whoever waits for a slot gets none."""


class _FreeSlots(Generic[S]):
    """The slots that may be read into, the longest free first."""

    def __init__(self, slots: Sequence[S]) -> None:
        self._slots = deque(slots)
        self._changed = threading.Condition()
        self._stopped = False

    def take(self) -> S:
        """Wait for a free slot. Stopped when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._slots or self._stopped)
            if self._stopped:
                raise Stopped("the pipeline has ended")
            return self._slots.popleft()

    def give(self, slot: S) -> None:
        """The slot may be read into again."""
        with self._changed:
            self._slots.append(slot)
            self._changed.notify()

    def stop(self) -> None:
        """Wake whoever waits."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def drop(self) -> None:
        """Let go of the slots."""
        with self._changed:
            self._slots.clear()


@contextmanager
def failing(future: "Future[None]") -> Iterator[None]:
    """Hand an exception of the body to whoever waits for the future."""
    try:
        yield
    except BaseException as error:
        future.set_exception(error)
        raise
