"""Updates that wait for the next step: clip way `deferred`, exact without a pass of its own."""

from dataclasses import dataclass

from torch import Tensor

from .gradients import Gradients
from .model import RecordLayout
from .mover import Mover
from .optimizer import AdamScalars, adamw_update
from .visits import Visit, pending_visits
from .workspace import RingSlot, Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingUpdate:
    """An update whose gradients wait in their homes: the factor of each record, and the scalars.

    Applied in the next step's first visit to each record, or by `settle_pending`.
    """

    factors: dict[str, Tensor]
    scalars: AdamScalars

    def apply(self, work: Workspace, layout: RecordLayout, slot: RingSlot | None) -> None:
        """Update the record that is resident in the slot, or at home on the device."""
        grad = Gradients(work).kept(layout)
        adamw_update(work.state(layout, slot), grad, self.factors[layout.name], self.scalars)
        work.grad_buffers.let_go()


def settle_pending(work: Workspace, mover: Mover, pending: PendingUpdate) -> None:
    """Update every record now: a commit, an evaluation or an export sees the whole last step."""

    def compute(visit: Visit, slot: RingSlot | None) -> None:
        if slot is not None:
            slot.ready.order()
        pending.apply(work, work.spec.records[visit.record], slot)
        if slot is not None:
            slot.done = work.transfer.fence()

    mover.drop_writes = False
    mover.pipeline.run(pending_visits(work.spec, work.plan.on_host), compute)
