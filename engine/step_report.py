"""Putting a step's measurements together: what it did, how long, and what crossed which link."""

from collections.abc import Mapping, Sequence
from time import perf_counter

import psutil
import torch

from headrace.storage import LinkStats

from .cost import StepCost
from .data import Microbatch
from .expectation import with_plan
from .report import LinkReport, StepReport
from .step import StepOutcome
from .workspace import Workspace

Links = Mapping[str, LinkStats]


def links_of(work: Workspace) -> Links:
    """What has crossed each link since the workspace was made."""
    return {**work.store.stats().links, **work.transfer.stats()}


class StepClock:
    """Started before a step; `report` says what the step and its commit took and moved."""

    def __init__(self, work: Workspace) -> None:
        self._work = work
        self._links = links_of(work)
        self._started = perf_counter()

    def report(
        self,
        outcome: StepOutcome,
        batches: Sequence[Microbatch],
        *,
        step: int,
        total_steps: int,
        epoch: float,
        learning_rate: float,
        commit_seconds: float,
        expected: StepCost,
    ) -> StepReport:
        """The report of the step that ends now, beside what the plan has for it."""
        times = [t for _, t in outcome.times]
        cuda = self._work.device.type == "cuda"
        return StepReport(
            step=step,
            total_steps=total_steps,
            epoch=epoch,
            loss=outcome.loss_sum / max(1, outcome.num_trained),
            grad_norm=outcome.grad_norm,
            clip_factor=outcome.clip_factor,
            learning_rate=learning_rate,
            skipped=outcome.skipped,
            num_tokens=sum(batch.num_tokens for batch in batches),
            num_computed_tokens=sum(batch.ids.numel() for batch in batches),
            num_trained_tokens=outcome.num_trained,
            token_accuracy=outcome.num_correct / max(1, outcome.num_trained),
            step_seconds=perf_counter() - self._started,
            planned_seconds=expected.seconds,
            compute_seconds=sum(t.compute for t in times),
            planned_compute_seconds=expected.busy_seconds()["compute"],
            forward_seconds=outcome.forward_seconds,
            backward_seconds=outcome.backward_seconds,
            optimizer_seconds=outcome.optimizer_seconds,
            commit_seconds=commit_seconds,
            stall_read_seconds=sum(t.stall_read for t in times),
            stall_write_seconds=sum(t.stall_write for t in times),
            links=with_plan(self._moved(), expected),
            rss_bytes=psutil.Process().memory_info().rss,
            device_peak_bytes=torch.cuda.max_memory_allocated() if cuda else 0,
        )

    def _moved(self) -> dict[str, LinkReport]:
        return {
            name: LinkReport(
                payload_bytes=(delta := stats - self._links[name]).payload_bytes,
                padding_bytes=delta.padding_bytes,
                operations=delta.operations,
                busy_seconds=delta.busy_seconds,
            )
            for name, stats in links_of(self._work).items()
        }
