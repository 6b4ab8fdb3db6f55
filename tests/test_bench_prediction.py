"""The bench of predictions goes on with what an earlier result has not run."""

from typing import Any

from bench.prediction import Bench, not_run, run_all, verdict
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
        "planned_device_bytes": 0, "planned_host_bytes": 2**20, "resident_bytes": 2**20,
        "host_share": 1.0, "same_run": strategy, "steady": steady, "drift": 0.0, "spread": 0.0,
        "wall_seconds": 1.0,
    }  # fmt: skip


def test_runs_of_other_cases_stay_as_they_were_and_unsteady_ones_are_made_again() -> None:
    first, second = CPU[:2]
    before = [row(second.name, "auto", steady=False)]
    bench = Steady()
    kept: list[int] = []
    rows = run_all(
        bench, [first], ["auto", "ratel"], minutes=1, repeats=1, before=before,
        keep=lambda rows: kept.append(len(rows)),
    )  # fmt: skip
    assert kept == [2, 3, 3, 3]  # after each run, so that none is lost
    assert bench.made == [(first.name, "auto"), (first.name, "ratel")] * 2
    assert [(one["case"], one["strategy"], one["steady"]) for one in rows] == [
        (second.name, "auto", False), (first.name, "auto", True), (first.name, "ratel", True),
    ]  # fmt: skip
    left = not_run(rows, "cpu")
    assert set(left) == {case.name for case in CPU}
    assert set(STRATEGIES) - set(left[first.name]) == {"auto", "ratel"}
    assert left[CPU[2].name] == list(STRATEGIES)


def test_what_is_known_is_not_run_again_and_the_best_try_of_an_unsteady_run_counts() -> None:
    first = CPU[0]
    known = [row(first.name, name, steady=True) for name in STRATEGIES]
    bench = Steady()
    assert run_all(bench, [first], None, minutes=1, repeats=1, before=known) == known
    assert bench.made == []
    calm = {**row(first.name, "auto", steady=False), "drift": 0.01}

    class Worse(Steady):
        def run(self, case: Any, strategy: str) -> dict[str, Any]:
            return {**super().run(case, strategy), "steady": False, "drift": 0.3, "error": -0.5}

    (one,) = run_all(Worse(), [first], ["auto"], minutes=1, repeats=1, before=[calm])
    assert (one["error"], one["drift"], one["tries"]) == (0.0, 0.01, 3)
    assert [other["error"] for other in one["other_tries"]] == [-0.5, -0.5]


def test_a_refused_run_is_none_and_a_failed_one_or_too_much_memory_is_a_miss() -> None:
    name = CPU[0].name
    auto = row(name, "auto", steady=True)
    refused = {"case": name, "strategy": "ratel", "refused": "it commits every step"}
    assert verdict(name, [auto, refused], "cpu")["holds"]
    failed = {"case": name, "strategy": "ratel", "failed": "OSError"}
    assert not verdict(name, [auto, failed], "cpu")["holds"]
    swollen = {**auto, "resident_bytes": 2**20 + 101 * 2**20}
    assert not verdict(name, [swollen], "cpu")["memory_as_planned"]
