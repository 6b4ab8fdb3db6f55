"""The bench of predictions goes on with what an earlier result has not run."""

from typing import Any

from bench.prediction import Bench, not_run, run_all
from bench.prediction_cases import CPU
from headrace.engine import STRATEGIES


class Steady(Bench):
    """Runs take no time; the first of each is on an unsteady box."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def run(self, case: Any, strategy: str) -> dict[str, Any]:
        run = case.name, strategy
        steady = run in self.made
        self.made.append(run)
        return row(*run, steady=steady)


def row(case: str, strategy: str, *, steady: bool) -> dict[str, Any]:
    return {
        "case": case, "strategy": strategy, "bottleneck": "drive", "planned_seconds": 1.0,
        "measured_seconds": 1.0, "error": 0.0, "error_then": 0.0, "reserved_share": None,
        "host_share": 1.0, "steady": steady, "drift": 0.0, "spread": 0.0, "wall_seconds": 1.0,
    }  # fmt: skip


def test_runs_of_other_cases_stay_as_they_were_and_unsteady_ones_are_made_again() -> None:
    first, second = CPU[:2]
    before = [row(second.name, "auto", steady=False)]
    bench = Steady()
    rows = run_all(bench, [first], ["auto", "ratel"], minutes=1, repeats=1, before=before)
    assert bench.made == [(first.name, "auto"), (first.name, "ratel")] * 2
    assert [(one["case"], one["strategy"], one["steady"]) for one in rows] == [
        (second.name, "auto", False), (first.name, "auto", True), (first.name, "ratel", True),
    ]  # fmt: skip
    left = not_run(rows, "cpu")
    assert set(left) == {case.name for case in CPU}
    assert set(STRATEGIES) - set(left[first.name]) == {"auto", "ratel"}
    assert left[CPU[2].name] == list(STRATEGIES)
