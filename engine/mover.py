"""Moving records between their home and a ring slot: the reader's and the writer's stage."""

import torch

from .visits import Visit, read_names
from .workspace import RingSlot, Workspace


class Mover:
    """Reads and writes records for visits, from NVMe or from host memory, up to the device.

    Both stages return when the slot may be used by the next one: on a GPU the copy up is ordered
    by an event instead, which compute waits for on its stream.
    """

    def __init__(self, work: Workspace) -> None:
        self._work = work
        self.drop_writes = False  # set when the step turned out not to be finite

    def read(self, visit: Visit, slot: RingSlot) -> None:
        """Bring what the visit reads into the slot's device half."""
        slot.ready = None
        work = self._work
        layout = work.spec.records[visit.record]
        record = work.records[layout.name]
        names = read_names(work.config, record, visit.reads)
        if not names or layout.name in work.residents:
            return
        source = work.homes.get(layout.name)
        if source is None:
            source = slot.host
            work.store.read_into(
                layout.name, slot.host, tensors=names, committed=visit.committed
            ).result()
        for start, stop in record.runs(names):
            slot.ready = work.transfer.to_device(
                source.tensor(torch.uint8, stop - start, start),
                slot.device.tensor(torch.uint8, stop - start, start),
            )

    def write(self, visit: Visit, slot: RingSlot) -> None:
        """Bring an updated record home, or wait until compute has let go of the slot."""
        assert slot.done is not None
        work = self._work
        layout = work.spec.records[visit.record]
        if not visit.writes or self.drop_writes or layout.name in work.residents:
            slot.done.wait()
            return
        size = work.records[layout.name].padded_bytes
        home = work.homes.get(layout.name)
        target = home or slot.host
        work.transfer.to_host(
            slot.device.tensor(torch.uint8, size),
            target.tensor(torch.uint8, size),
            after=slot.done,
        ).wait()
        if home is None:
            work.store.write_from(layout.name, slot.host).result()

    def flush_homes(self) -> None:
        """Write every record that lives above NVMe into the store's working generation."""
        work = self._work
        pending = [work.store.write_from(name, home) for name, home in work.homes.items()]
        for write in pending:
            write.result()
        staging = work.ring[0].host
        for name, resident in work.residents.items():
            size = work.records[name].padded_bytes
            work.transfer.to_host(
                resident.tensor(torch.uint8, size),
                staging.tensor(torch.uint8, size),
                after=work.transfer.fence(),
            ).wait()
            work.store.write_from(name, staging).result()

    def load_homes(self) -> None:
        """Read every record that lives above NVMe from the store's last commit."""
        work = self._work
        pending = [work.store.read_into(name, home) for name, home in work.homes.items()]
        for read in pending:
            read.result()
        staging = work.ring[0].host
        for name, resident in work.residents.items():
            work.store.read_into(name, staging).result()
            size = work.records[name].padded_bytes
            work.transfer.to_device(
                staging.tensor(torch.uint8, size), resident.tensor(torch.uint8, size)
            ).wait()
