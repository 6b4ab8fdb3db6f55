"""Putting a step's measurements together: what it did, how long, and what crossed which link."""

from collections.abc import Mapping, Sequence
from time import monotonic

import psutil
import torch

from headrace.storage import LinkStats

from .cost import StepCost
from .data import Microbatch
from .expectation import with_plan
from .report import LinkReport, StepReport, Traffic
from .step import StepOutcome
from .workspace import Workspace

Links = Mapping[str, LinkStats]


def links_of(work: Workspace) -> Links:
    """What has crossed each link since the workspace was made."""
    return {**work.store.stats().links, **work.transfer.stats()}


def traffic(work: Workspace) -> Traffic:
    """Bytes over each link and on each volume since the workspace was made, padding included."""
    volumes = work.store.stats().per_volume

    def total(stats: LinkStats) -> int:
        return stats.payload_bytes + stats.padding_bytes

    return Traffic(
        links={name: total(stats) for name, stats in links_of(work).items()},
        volumes={
            path: {link: total(stats) for link, stats in links.items()}
            for path, links in volumes.items()
        },
    )


class StepClock:
    """Started before a step; `report` says what the step and its commit took and moved.

    `started` is the beginning on the monotonic clock, which the spans of the links are told on.
    """

    def __init__(self, work: Workspace, since: Links | None = None) -> None:
        """`since`: what had crossed the links when the step before was told, where this one
        follows at once: what was read ahead in between is of this step."""
        self._work = work
        self._links = links_of(work) if since is None else since
        self.links = self._links  # when this step was told
        self.started = monotonic()

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
            loss=outcome.totals.loss,
            router_aux_loss=outcome.balance_loss,
            grad_norm=outcome.grad_norm,
            clip_factor=outcome.clip_factor,
            learning_rate=learning_rate,
            skipped=outcome.skipped,
            num_tokens=sum(batch.num_tokens for batch in batches),
            num_computed_tokens=sum(batch.ids.numel() for batch in batches),
            num_trained_tokens=outcome.totals.num_trained,
            token_accuracy=outcome.totals.token_accuracy,
            **outcome.totals.rewards,
            step_seconds=monotonic() - self.started,
            planned_seconds=expected.seconds,
            compute_seconds=sum(t.compute for t in times),
            planned_compute_seconds=expected.busy_seconds()["compute"],
            forward_seconds=outcome.forward_seconds,
            backward_seconds=outcome.backward_seconds,
            optimizer_seconds=outcome.optimizer_seconds,
            commit_seconds=commit_seconds,
            stall_read_seconds=sum(t.stall_read - t.waited_for_write for t in times),
            stall_write_seconds=sum(t.waited_for_write for t in times),
            links=with_plan(self._moved(), expected),
            rss_bytes=psutil.Process().memory_info().rss,
            device_peak_bytes=torch.cuda.max_memory_allocated() if cuda else 0,
        )

    def moved(self) -> dict[str, LinkStats]:
        """What had crossed each link in the step when it was told."""
        return {name: now - self._links[name] for name, now in self.links.items()}

    def _moved(self) -> dict[str, LinkReport]:
        self.links = links_of(self._work)
        return {
            name: LinkReport(
                payload_bytes=delta.payload_bytes,
                padding_bytes=delta.padding_bytes,
                operations=delta.operations,
                busy_seconds=delta.busy_seconds,
            )
            for name, delta in self.moved().items()
        }
