"""One optimizer step, layer-major: READ THIS FIRST.

Forward: every microbatch passes layer i before layer i + 1. Head: chunked loss with immediate
backward. Backward, last layer first: recompute, accumulate over the microbatches in fp32, and,
when the way is speculative, update while the layer is resident. Then the norm is known, in layer
order: what is left is updated, or a speculative update is made again with the right factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from .forward import VisitMarks
from .mover import Mover
from .orders import ordered_visits
from .pending import PendingUpdate
from .pipeline import VisitTimes
from .step_compute import StepCompute, StepInputs
from .totals import Totals
from .visits import Phase, Visit, redo_visits
from .workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a step did. `skipped`: the gradient was not finite and nothing was changed.

    `balance_loss` is that of a mixture's experts, where it is part of what is minimised.
    `pending` is the update that the next step, or what comes before it, owes the records.
    """

    totals: Totals
    balance_loss: float | None
    target_losses: torch.Tensor | None  # as LossSums.losses gives them
    grad_norm: float
    clip_factor: float
    clipped: bool
    skipped: bool
    pending: PendingUpdate | None
    times: list[tuple[Visit, VisitTimes]]
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float


def train_step(work: Workspace, mover: Mover, inputs: StepInputs) -> StepOutcome:
    """Run one step; the new state is in the store's working generation and the host homes.

    Writes of a step that is skipped are dropped. The caller commits.
    """
    compute = StepCompute(work, mover, inputs)
    compute.sums.of_targets = [] if work.config.row_losses else None
    mover.drop_writes = False
    owed = inputs.pending is not None
    visits = _visits(work, inputs, pending=owed)
    # What the next step will begin with; the pipeline takes as much of it as its slots can hold.
    ahead = (
        _visits(work, inputs, pending=inputs.way == "deferred") if inputs.another_follows else []
    )
    times = mover.pipeline.run(visits, compute.visit, ahead=ahead)
    settled = compute.settle()
    if inputs.way == "speculative":
        if settled.skipped:
            work.store.abort()
            mover.settle_guesses(right=False)
        elif work.config.clip_mode == "exact" and settled.clipped:
            again = redo_visits(work.plan.early("speculative"), work.plan.on_host)
            times += mover.pipeline.run(again, compute.visit)
            visits += again
        else:
            mover.settle_guesses(right=True)
    ended = work.transfer.mark()
    timed = list(zip(visits, device_times(times, compute.marks, work.device), strict=True))
    begun = compute.marks[0].came
    spans = phase_seconds(visits, compute.marks)
    return StepOutcome(
        totals=compute.totals(),
        balance_loss=compute.balance.loss(),
        target_losses=compute.sums.losses(),
        grad_norm=settled.norm,
        clip_factor=settled.factor,
        clipped=settled.clipped,
        skipped=settled.skipped,
        pending=compute.left_pending() if inputs.way == "deferred" else None,
        times=timed,
        forward_seconds=spans["forward"],
        backward_seconds=spans["backward"],
        optimizer_seconds=begun.seconds_until(ended) - spans["forward"] - spans["backward"],
    )


def phase_seconds(visits: Sequence[Visit], marks: Sequence[VisitMarks]) -> dict[Phase, float]:
    """Seconds of each phase: of a visit those since the end of the one before."""
    begun, before = marks[0].came, 0.0
    spans: dict[Phase, float] = {"forward": 0.0, "backward": 0.0}
    for visit, mark in zip(visits, marks, strict=True):
        end = begun.seconds_until(mark.ended)
        spans[visit.phase] = spans.get(visit.phase, 0.0) + end - before
        before = end
    return spans


def _visits(work: Workspace, inputs: StepInputs, *, pending: bool) -> list[Visit]:
    placement = work.plan.basis.placement
    microbatches = len(inputs.microbatches)
    return ordered_visits(
        work.spec, placement, inputs.way, pending=pending, microbatches=microbatches
    )


def device_times(
    times: Sequence[VisitTimes], marks: Sequence[VisitMarks], device: torch.device
) -> list[VisitTimes]:
    """The times as the device saw them: on a GPU, the thread that gives it work runs ahead."""
    if device.type != "cuda":
        return list(times)
    before = (marks[0].came, *(mark.ended for mark in marks))
    return [
        replace(
            one,
            compute=mark.began.seconds_until(mark.ended),
            stall_read=earlier.seconds_until(mark.began),
        )
        for one, mark, earlier in zip(times, marks, before, strict=False)
    ]
