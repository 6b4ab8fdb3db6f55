"""Prometheus metrics: counters fed by the events of steps, gauges read when asked.

Counters count from the start of this process, as Prometheus expects. The series of a job go when
it ends.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from .contract import Daemon
from .jobs import STATUSES, EventRecord
from .status import product_version

CONTENT_TYPE = CONTENT_TYPE_LATEST
STEP_BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800)
PHASES = ("forward", "backward", "optimizer", "commit")
STALLS = ("read", "write")


class Metrics:
    """The registry of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Gauges(daemon))
        registry = self._registry
        self._steps = Histogram(
            "headrace_step_seconds", "Seconds per step", buckets=STEP_BUCKETS, registry=registry
        )
        self._tokens = Counter("headrace_tokens", "Tokens trained on", registry=registry)
        self._phases = Counter(
            "headrace_phase_seconds", "Seconds in a phase", ["phase"], registry=registry
        )
        self._stalls = Counter(
            "headrace_stall_seconds", "Seconds waited", ["waiting_on"], registry=registry
        )
        self._link_bytes = Counter(
            "headrace_link_bytes", "Payload bytes moved", ["link"], registry=registry
        )
        self._link_busy = Counter(
            "headrace_link_busy_seconds", "Seconds a link was busy", ["link"], registry=registry
        )
        self._skipped = Counter(
            "headrace_nonfinite_steps", "Steps without a finite gradient", registry=registry
        )

    def observe(self, event: EventRecord) -> None:
        """Count a step; other events are passed over."""
        if event.type != "metrics" or not event.data or "step_seconds" not in event.data:
            return
        data = event.data
        self._steps.observe(data["step_seconds"])
        self._tokens.inc(data.get("num_tokens", 0))
        self._skipped.inc(bool(data.get("skipped")))
        for phase in PHASES:
            self._phases.labels(phase).inc(data.get(f"{phase}_seconds", 0))
        for side in STALLS:
            self._stalls.labels(side).inc(data.get(f"stall_{side}_seconds", 0))
        for name, link in _links(data).items():
            self._link_bytes.labels(name).inc(link.get("payload_bytes", 0))
            self._link_busy.labels(name).inc(link.get("busy_seconds", 0))

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    """What is read from the journal when Prometheus asks."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def describe(self) -> Iterator[Metric]:
        """No names ahead of time: at registration the journal is not open yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Jobs by status, and the running job's numbers."""
        build = GaugeMetricFamily("headrace_build_info", "The version", labels=["version"])
        build.add_metric([product_version()], 1)
        yield build
        counts = self._daemon.journal.job_counts()
        jobs = GaugeMetricFamily("headrace_jobs", "Jobs by status", labels=["status"])
        for status in STATUSES:
            jobs.add_metric([status], counts.get(status, 0))
        yield jobs
        ready = GaugeMetricFamily("headrace_ready", "1 when a job can be taken")
        ready.add_metric([], not self._daemon.ready())
        yield ready
        yield from self._running()

    def _running(self) -> Iterator[Metric]:
        gauges = {
            "step": GaugeMetricFamily("headrace_job_step", "The newest step", labels=["job"]),
            "total_steps": GaugeMetricFamily(
                "headrace_job_total_steps", "Steps of the job", labels=["job"]
            ),
            "tokens_per_s": GaugeMetricFamily(
                "headrace_job_tokens_per_second", "The newest rate", labels=["job"]
            ),
        }
        loss = GaugeMetricFamily("headrace_job_loss", "Newest loss", labels=["job", "split"])
        for job in self._daemon.journal.jobs(status=["running"]):
            for name, gauge in gauges.items():
                if (value := job.engine.get(name)) is not None:
                    gauge.add_metric([job.id], value)
            for split, name in (("train", "loss"), ("valid", "eval_loss")):
                if (value := job.engine.get(name)) is not None:
                    loss.add_metric([job.id, split], value)
        yield from (*gauges.values(), loss)


def _links(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return dict(data.get("links") or {})
