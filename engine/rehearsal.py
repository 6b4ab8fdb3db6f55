"""Before the first step: what the largest one needs, and whether the volumes take a commit.

A run whose longest rows come late would else find out after hours that memory is short.
"""

from dataclasses import dataclass
from time import monotonic

import psutil
import torch

from headrace.storage import WriteBudgetSpent

from .capacity import CannotFit
from .config import TrainConfig
from .data import Microbatch, TokenDataset, step_microbatches
from .errors import Setting
from .mover import Mover
from .optimizer import AdamScalars
from .orders import ordered_visits
from .packing import Arrangement, step_tokens
from .report import Emit, RunEvent
from .row_order import Ints
from .step_compute import StepCompute, StepInputs
from .working import MIB
from .workspace import Workspace

SOON = 10  # steps; what comes so early needs no rehearsal


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestStep:
    """The step with the largest microbatch of a run, among such the one with most tokens."""

    step: int
    microbatch_tokens: int
    tokens: int


def largest_step(lengths: Ints, config: TrainConfig, total_steps: int) -> LargestStep:
    """The largest step of a run over rows of these lengths; the first of several."""
    found = LargestStep(step=0, microbatch_tokens=0, tokens=0)
    before = 0
    for table in step_tokens(lengths, Arrangement.of(config), total_steps):
        peaks, totals = table.max(axis=1), table.sum(axis=1)
        best = int((peaks * (totals.max() + 1) + totals).argmax())
        if (peaks[best], totals[best]) > (found.microbatch_tokens, found.tokens):
            found = LargestStep(
                step=before + best + 1,
                microbatch_tokens=int(peaks[best]),
                tokens=int(totals[best]),
            )
        before += len(table)
    return found


def rehearse(
    work: Workspace, mover: Mover, data: TokenDataset, total_steps: int, emit: Emit
) -> None:
    """Compute the largest step up to its gradients, which are dropped, and make a commit.

    Nothing is updated and nothing drawn at random. CannotFit when memory is short after all. With
    `rehearsal` auto a largest step that comes soon is left to itself.
    """
    config = work.config
    if config.rehearsal == "off":
        return
    largest = largest_step(data.lengths, config, total_steps)
    if config.rehearsal == "auto" and largest.step <= SOON:
        return
    emit(RunEvent(type="phase", message="rehearsing the largest step", step=0))
    started = monotonic()
    batches = step_microbatches(data, Arrangement.of(config), step=largest.step)
    try:
        _compute(work, mover, batches)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise CannotFit(
            f"memory is short in step {largest.step}, the largest of the run with "
            f"{largest.tokens} tokens and {largest.microbatch_tokens} in a microbatch: {error}. "
            "Lower ",
            Setting("batch_rows"),
            ", ",
            Setting("microbatch_tokens"),
            " or the length of the rows, or give more memory",
        ) from error
    computed = monotonic()
    _commit(work)
    cuda = work.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    memory = f", {peak / MIB:.0f} MiB at most on the device" if cuda else ""
    emit(
        RunEvent(
            type="message",
            message=f"rehearsed step {largest.step}, the largest with {largest.tokens} tokens: "
            f"{computed - started:.1f} s{memory}; the volumes take a commit",
            step=0,
            data={
                "rehearsal": {
                    "step": largest.step,
                    "tokens": largest.tokens,
                    "microbatch_tokens": largest.microbatch_tokens,
                    "seconds": computed - started,
                    "commit_seconds": monotonic() - computed,
                    "device_peak_bytes": peak,
                    "rss_bytes": psutil.Process().memory_info().rss,
                }
            },
        )
    )


def _compute(work: Workspace, mover: Mover, batches: list[Microbatch]) -> None:
    """Forward and backward of a step, in the order of updates that come last; they never come."""
    visits = ordered_visits(
        work.spec,
        work.plan.basis.placement,
        "serial",
        pending=False,
        microbatches=len(batches),
    )
    inputs = StepInputs(
        microbatches=batches,
        scalars=AdamScalars.at(1, learning_rate=work.config.learning_rate, config=work.config),
        way="serial",
        last_norm=None,
    )
    compute = StepCompute(work, mover, inputs)
    mover.pipeline.run([one for one in visits if one.phase != "optimizer"], compute.visit)
    compute.totals()  # waits for the device


def _commit(work: Workspace) -> None:
    """Write one small record as it is, and make that the live commit."""
    smallest = min(work.spec.trained, key=lambda layout: layout.num_elements)
    try:
        work.store.begin(0)
    except WriteBudgetSpent:
        return  # the first step says so, and pauses the run
    with work.staging.borrow() as staging:
        work.store.read_into(smallest.name, staging.slot).result()
        work.store.write_from(smallest.name, staging.slot).result()
    work.store.commit(work.store.metadata)
