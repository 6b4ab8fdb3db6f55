"""Plan and measurement stand side by side, and a run that leaves its plan says why."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datasets import write_dataset
from headrace.engine import LinkReport, StepReport, known_rates, read_model_spec
from headrace.engine.expectation import DriftWatch
from headrace.engine.rate_file import write_rates
from headrace.engine.rates import LayerRate, ShapeRates, default_rates, shape_key
from headrace.engine.report import LINKS
from headrace.storage import VolumeConfig
from runs import Run
from tiny import make_tiny_llama

MEASURED = replace(default_rates("cpu"), origin="measured")


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_way": "serial"},
        {"clip_way": "speculative", "max_grad_norm": 1e9},
        {"clip_way": "speculative", "max_grad_norm": 1e-3},  # every bet is lost
        {"clip_mode": "per_layer"},
        {"clip_way": "deferred", "commit_every_steps": 3, "max_steps": 5},
        {"state_tier": "host", "commit_every_steps": 2},
        {"clip_way": "serial", "recompute": "none"},
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_every_link_moves_what_the_report_has_planned_beside_it(
    tmp_path: Path, tied: bool, settings: dict[str, Any]
) -> None:
    model = make_tiny_llama(tmp_path / "model", tied=tied, seed=2)
    dataset = write_dataset(tmp_path / "data", [9, 17, 5, 30], vocab=384)
    run = Run(tmp_path, model, dataset, **{"recompute": "all", **settings})
    run.go()
    steps = run.metrics()
    for link in LINKS:
        reports = [step["links"][link] for step in steps]
        # What the next step begins with may come up in this one, where no commit lies between:
        # links to the device, and a drive's reads, are held to the plan over the run.
        exact = link == "nvme_write" or (
            link == "nvme_read" and "commit_every_steps" not in settings
        )
        each = reports if exact else [dict(map(summed(reports), COUNTED))]
        for one in each:
            assert one["payload_bytes"] == pytest.approx(one["planned_bytes"], rel=0.02), link
        assert all((one["planned_seconds"] > 0) == (one["planned_bytes"] > 0) for one in reports)
    assert all(step["planned_seconds"] > 0 for step in steps)
    assert all(step["planned_compute_seconds"] > 0 for step in steps)


COUNTED = ("payload_bytes", "planned_bytes")


def summed(reports: list[dict[str, Any]]) -> Callable[[str], tuple[str, int]]:
    return lambda name: (name, sum(one[name] for one in reports))


def report(step: int, **given: Any) -> StepReport:
    """A step as planned, but for what is given: one second, of which the drive is busy 0.8."""
    link = LinkReport(payload_bytes=10**9, planned_bytes=10**9, busy_seconds=0.8,
                      planned_seconds=0.8)  # fmt: skip
    drive = replace(link, **given.pop("drive", {}))
    values: dict[str, Any] = {
        "step": step, "total_steps": 100, "epoch": 0.0, "loss": 1.0, "grad_norm": 1.0,
        "clip_factor": 1.0, "learning_rate": 1e-5, "skipped": False, "num_tokens": 100,
        "num_computed_tokens": 100,
        "num_trained_tokens": 100, "token_accuracy": 0.5, "step_seconds": 1.0,
        "planned_seconds": 1.0, "compute_seconds": 0.5, "planned_compute_seconds": 0.5,
        "forward_seconds": 0.3, "backward_seconds": 0.6, "optimizer_seconds": 0.1,
        "commit_seconds": 0.0, "stall_read_seconds": 0.0, "stall_write_seconds": 0.0,
        "links": {"nvme_read": drive}, "rss_bytes": 1, "device_peak_bytes": 0,
    }  # fmt: skip
    return StepReport(**(values | given))


def told(watch: DriftWatch, reports: list[StepReport]) -> list[str]:
    return [str(drift) for one in reports if (drift := watch.look(one)) is not None]


def test_a_slow_drive_is_the_reason_and_is_told_once() -> None:
    slow: dict[str, Any] = {"step_seconds": 1.5, "drive": {"busy_seconds": 1.4}}
    said = told(DriftWatch(MEASURED), [report(step, **slow) for step in range(1, 20)])
    assert len(said) == 1
    assert "1.5 s, 1 s planned (+50 %): nvme_read carried 0.714 GB/s, 1.25 planned" in said[0]


def test_a_run_that_leaves_its_plan_leaves_word_with_the_rates_that_it_went_by(
    tmp_path: Path,
) -> None:
    """Planned by a box that takes next to no time; the next plan says what was found."""
    model = make_tiny_llama(tmp_path / "model", tied=True, seed=2)
    dataset = write_dataset(tmp_path / "data", [9, 17, 5, 30], vocab=384)
    run = Run(tmp_path, model, dataset, max_steps=8)
    key = shape_key(read_model_spec(model), run.config)
    volumes = [VolumeConfig.parse(text) for text in run.config.volumes]
    layer = LayerRate(tokens=64, forward_flops=1e18, backward_flops=1e18)
    shape = ShapeRates(measured_at="now", layers=(layer,), head_flops=1e18)
    write_rates(volumes, replace(MEASURED, shapes={key: shape}))
    run.go()
    # On a busy box it may be told again, of steps twice as long still: the last word stays.
    *_, drift = (event.message for event in run.events if "drift" in event.data)
    found = known_rates("cpu", volumes).for_shape(key)
    assert found.doubts == (f"in a run since, {drift}",)


def test_slow_compute_is_the_reason_when_it_is() -> None:
    slow: dict[str, Any] = {"step_seconds": 1.5, "compute_seconds": 1.3}
    (said,) = told(DriftWatch(MEASURED), [report(step, **slow) for step in range(1, 9)])
    assert "compute took 1.3 s, 0.5 planned" in said


def test_a_run_faster_than_planned_is_told_too() -> None:
    fast: dict[str, Any] = {"step_seconds": 0.7, "drive": {"busy_seconds": 0.5}}
    (said,) = told(DriftWatch(MEASURED), [report(step, **fast) for step in range(1, 9)])
    assert "(-30 %): nvme_read carried 2 GB/s" in said


def test_neither_the_first_step_nor_one_slow_one_is_a_drift() -> None:
    reports = [report(step) for step in range(1, 12)]
    reports[0] = report(1, step_seconds=30.0)
    reports[6] = report(7, step_seconds=9.0)
    assert told(DriftWatch(MEASURED), reports) == []


def test_a_commit_is_no_drift() -> None:
    reports = [report(step, step_seconds=3.0, commit_seconds=2.0) for step in range(1, 9)]
    assert told(DriftWatch(MEASURED), reports) == []


def test_what_begins_again_is_told_again_and_what_was_never_measured_is_not() -> None:
    slow: dict[str, Any] = {"step_seconds": 1.5, "drive": {"busy_seconds": 1.4}}
    steps = [report(i, **slow) for i in range(7)] + [report(i) for i in range(7)]
    assert len(told(DriftWatch(MEASURED), steps + steps)) == 2
    assert told(DriftWatch(default_rates("cpu")), steps) == []


def test_the_numbers_of_a_drift_are_of_one_step() -> None:
    """Steps of many lengths: the told share is that of the told seconds."""
    watch = DriftWatch(MEASURED)
    drifts = []
    for step, planned in enumerate((1.0, 1.0, 4.0, 2.0, 8.0, 3.0), 1):
        taken = planned * (1.3 + 0.1 * step)
        drifts.append(watch.look(report(step, step_seconds=taken, planned_seconds=planned)))
    (drift,) = [one for one in drifts if one is not None]
    assert drift.measured_seconds / drift.planned_seconds - 1 == pytest.approx(drift.share)
