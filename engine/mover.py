"""Moving records between their home and a ring slot: what happens before and after compute.

On a GPU a record that lives in host memory is moved by events alone: nothing here waits for the
device. A record on NVMe passes through a staging slot, and the thread that moves it waits.
"""

from collections.abc import Callable

import torch

from headrace.storage import Fence, HostSlot

from .host_updates import HostUpdates
from .pipeline import Pipeline
from .reserved import reserve
from .visits import Visit, read_names
from .workspace import RingSlot, Workspace


class Mover:
    """Reads and writes records for visits, from NVMe or from host memory, up to the device."""

    def __init__(self, work: Workspace) -> None:
        self._work = work
        self.drop_writes = False  # set when the step turned out not to be finite
        self.host_updates = HostUpdates(work)
        self.pipeline: Pipeline[RingSlot] = Pipeline(work.ring, self)
        work.closing(self)

    def close(self) -> None:
        """End the pipeline. Nothing refers back from here on, so that the workspace and its memory
        go with the last who uses them, and not when the garbage collector comes by."""
        self.pipeline.close()
        del self.pipeline

    def needs_slot(self, visit: Visit) -> bool:
        """Whether the record passes through a slot: one on the device is used where it is."""
        name = self._work.spec.records[visit.record].name
        if name in self._work.residents:
            return False
        if name in self._work.cached and visit.reads == "weights":
            return False
        return visit.reads != "nothing" or visit.writes or visit.held

    def read(self, visit: Visit, slot: RingSlot) -> None:
        """Bring what the visit reads into the slot; `slot.ready` says when it is there."""
        work = self._work
        name = work.spec.records[visit.record].name
        names = read_names(work.config, work.records[name], visit.reads)
        if not names:
            return
        home = work.homes.get(name)
        if home is not None:
            self.host_updates.wait(name)
            source = home.now if visit.committed else home.newest
            slot.ready = self._copy_up(name, names, source, slot, home.written)
            return
        with work.staging.borrow() as staging:
            work.store.read_into(
                name, staging.slot, tensors=names, committed=visit.committed
            ).result()
            slot.ready = self._copy_up(name, names, staging.slot, slot, Fence())
            staging.busy_until = slot.ready

    def _copy_up(
        self, name: str, names: tuple[str, ...], source: HostSlot, slot: RingSlot, written: Fence
    ) -> Fence:
        ready = slot.free
        for start, stop in self._work.records[name].runs(names):
            ready = self._work.transfer.to_device(
                source.tensor(torch.uint8, stop - start, start),
                slot.device.tensor(torch.uint8, stop - start, start),
                after=(slot.free, written),
            )
        return ready

    def release(self, visit: Visit, slot: RingSlot) -> Callable[[], None]:
        """Begin to bring an updated record home; `slot.free` says when the slot is free."""
        work = self._work
        slot.free = slot.done
        # An update that was pending is of the step before, whatever becomes of this one.
        if not visit.writes or (self.drop_writes and not visit.pending):
            return _nothing_left
        name = work.spec.records[visit.record].name
        size = work.records[name].padded_bytes
        source = slot.device.tensor(torch.uint8, size)
        home = work.homes.get(name)
        if home is not None:
            is_guess = visit.phase == "backward"  # later on, the factor is known
            target = home.take_update(is_guess=is_guess).tensor(torch.uint8, size)
            home.written = slot.free = work.transfer.to_host(source, target, after=slot.done)
            return _nothing_left
        staging = work.staging.take()
        slot.free = landed = work.transfer.to_host(
            source, staging.slot.tensor(torch.uint8, size), after=slot.done
        )

        def finish() -> None:
            try:
                landed.wait()
                work.store.write_from(name, staging.slot).result()
            finally:
                work.staging.give(staging)

        return finish

    def settle_guesses(self, *, right: bool) -> None:
        """Updates made in host memory before the norm was known are kept, or forgotten."""
        for home in self._work.homes.values():
            home.settle(right=right)
        if not right:
            self.pipeline.drop_ahead()

    def flush_homes(self) -> None:
        """Write every trained record that lives above NVMe into the store's working generation."""
        work = self._work
        self.host_updates.wait_all()
        for home in work.homes.values():
            home.written.wait()
        trained = {layout.name for layout in work.spec.trained}
        pending = [
            work.store.write_from(name, home.now)
            for name, home in work.homes.items()
            if name in trained
        ]
        for write in pending:
            write.result()
        with work.staging.borrow() as staging:
            for name, resident in work.residents.items():
                if name not in trained:
                    continue
                size = work.records[name].padded_bytes
                work.transfer.to_host(
                    resident.tensor(torch.uint8, size),
                    staging.slot.tensor(torch.uint8, size),
                    after=work.transfer.fence(),
                ).wait()
                work.store.write_from(name, staging.slot).result()

    def load_homes(self) -> None:
        """Read every record that lives above NVMe from the store's last commit; then reserve what
        else is planned of the device. MemoryGone where that is taken, StoreError."""
        work = self._work
        pending = [work.store.read_into(name, home.now) for name, home in work.homes.items()]
        for read in pending:
            read.result()
        for name, cached in work.cached.items():
            if name in work.homes:
                cached.bring_up(work.homes[name].now, work.transfer, Fence())
        with work.staging.borrow() as staging:
            for name, cached in work.cached.items():
                if name not in work.homes:
                    work.store.read_into(name, staging.slot, tensors=cached.names).result()
                    cached.bring_up(staging.slot, work.transfer, Fence())
                    cached.ready.wait()
            for name, resident in work.residents.items():
                work.store.read_into(name, staging.slot).result()
                size = work.records[name].padded_bytes
                work.transfer.to_device(
                    staging.slot.tensor(torch.uint8, size), resident.tensor(torch.uint8, size)
                ).wait()
        reserve(work.plan, work.device)


def _nothing_left() -> None:
    """What is left of a write whose rest the device orders by itself."""
