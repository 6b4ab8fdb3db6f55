"""Prometheus metrics: counters fed by the events of steps, gauges read when asked.

Counters count from the start of this process, as Prometheus expects. The series of a job go when
it ends.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
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

        self._commits = Histogram(
            "headrace_checkpoint_seconds",
            "Seconds per commit of the training state",
            buckets=STEP_BUCKETS,
            registry=registry,
        )
        self._committed_at = Gauge(
            "headrace_checkpoint_last_success_timestamp_seconds",
            "When training state was last committed",
            registry=registry,
        )
        self._rows = Counter(
            "headrace_dataset_rows", "Rows of data sets by their fate", ["outcome"],
            registry=registry,
        )  # fmt: skip

    def observe(self, event: EventRecord) -> None:
        """Count a step, a commit, the rows of a data report; other events are passed over."""
        data = event.data or {}
        if event.type == "metrics" and "step_seconds" in data:
            self._count_step(data)
        elif event.type == "commit":
            self._commits.observe(data.get("seconds", 0))
            self._committed_at.set(event.created_at)
        elif event.type == "message" and "kept" in data and "rows" in data:
            self._rows.labels("kept").inc(data["kept"])
            self._rows.labels("left_out").inc(data["rows"] - data["kept"])

    def _count_step(self, data: Mapping[str, Any]) -> None:
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
        yield from _box(self._daemon.status())

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
        accuracy = GaugeMetricFamily(
            "headrace_job_token_accuracy",
            "Newest share of tokens that were foretold",
            labels=["job", "split"],
        )
        tokens = CounterMetricFamily("headrace_job_tokens", "Tokens of the job", labels=["job"])
        tiers = GaugeMetricFamily(
            "headrace_tier_bytes", "Bytes that the plan gives a tier", labels=["tier", "kind"]
        )
        for job in self._daemon.journal.jobs(status=["running"]):
            for name, gauge in gauges.items():
                if (value := job.engine.get(name)) is not None:
                    gauge.add_metric([job.id], value)
            for gauge, split, name in (
                (loss, "train", "loss"),
                (loss, "valid", "valid_loss"),
                (accuracy, "train", "token_accuracy"),
                (accuracy, "valid", "valid_mean_token_accuracy"),
            ):
                if (value := job.engine.get(name)) is not None:
                    gauge.add_metric([job.id, split], value)
            tokens.add_metric([job.id], job.engine.get("tokens_seen", 0))
            for tier in ("device", "host"):
                planned = (job.engine.get("plan") or {}).get(f"{tier}_bytes") or {}
                for kind, size in planned.items():
                    tiers.add_metric([tier, kind], size)
        yield from (*gauges.values(), loss, accuracy, tokens, tiers)


def _box(status: Mapping[str, Any]) -> Iterator[Metric]:
    """The worker's restarts, and each volume's drive as far as it tells."""
    restarts = CounterMetricFamily("headrace_worker_restarts", "Times the worker was replaced")
    restarts.add_metric([], status["worker"].get("restarts", 0))
    yield restarts
    free = GaugeMetricFamily("headrace_volume_free_bytes", "Free bytes", labels=["volume"])
    written = CounterMetricFamily(
        "headrace_ssd_written_bytes", "Bytes ever written to a drive", labels=["device"]
    )
    used = GaugeMetricFamily(
        "headrace_ssd_used_life_ratio", "Share of a drive's rated life", labels=["device"]
    )
    heat = GaugeMetricFamily(
        "headrace_ssd_temperature_celsius", "A drive's temperature", labels=["device"]
    )
    for volume in status.get("storage", ()):
        free.add_metric([volume["path"]], volume["free_bytes"])
        health = volume.get("health") or {}
        for family, name, scale in (
            (written, "written_bytes", 1.0),
            (used, "percentage_used", 0.01),
            (heat, "temperature_celsius", 1.0),
        ):
            if health.get(name) is not None:
                family.add_metric([health["device"]], scale * health[name])
    yield from (free, written, used, heat)


def _links(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return dict(data.get("links") or {})
