"""The bench of predictions: what it goes on with, and which of several tries counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.prediction import (
    FORM,
    SAMPLE_SECONDS,
    Bench,
    means,
    not_run,
    read_rows,
    report,
    run_all,
    verdict,
)
from bench.prediction_cases import CPU
from headrace.engine import STRATEGIES


class Scripted(Bench):
    """Runs take no time. Of each the first so many are on an unsteady box, with these errors."""

    def __init__(self, *unsteady: float) -> None:
        self.made: list[tuple[str, str]] = []
        self.unsteady = unsteady

    def names(self, case: Any) -> list[str]:
        return list(STRATEGIES)

    def run(self, case: Any, strategy: str) -> dict[str, Any]:
        run = case.name, strategy
        tries = self.made.count(run)
        self.made.append(run)
        if tries < len(self.unsteady):
            return {**row(*run, steady=False), "error": self.unsteady[tries]}
        return {**row(*run, steady=True), "error": 0.19}


def row(case: str, strategy: str, *, steady: bool) -> dict[str, Any]:
    return {
        "case": case, "strategy": strategy, "bottleneck": "drive", "planned_seconds": 1.0,
        "measured_seconds": 1.0, "error": 0.0, "error_then": 0.0, "reserved_share": None,
        "planned_device_bytes": 0, "planned_host_bytes": 2**20, "resident_bytes": 2**20,
        "host_share": 1.0, "same_run": strategy, "steady": steady, "drift": 0.0, "spread": 0.0,
        "wall_seconds": 1.0, "at": "now", "samples": [1.0] * 5, "sources": "one",
    }  # fmt: skip


def test_an_unsteady_run_is_made_again_at_once_and_the_first_steady_one_counts() -> None:
    """Whatever its error is: that of a try which does not count may be the smaller one."""
    first, second = CPU[:2]
    before = [row(second.name, "auto", steady=False)]
    bench = Scripted(0.01)
    kept: list[int] = []
    rows = run_all(
        bench, [first], ["auto", "ratel"], minutes=1, times=1, repeat=3, before=before,
        keep=lambda rows: kept.append(len(rows)),
    )  # fmt: skip
    assert kept == [2, 2, 3, 3]  # after each run, so that none is lost
    assert bench.made == [(first.name, "auto")] * 2 + [(first.name, "ratel")] * 2
    assert [(one["case"], one["strategy"], one["steady"]) for one in rows] == [
        (second.name, "auto", False), (first.name, "auto", True), (first.name, "ratel", True),
    ]  # fmt: skip
    assert [one["error"] for one in rows[1:]] == [0.19, 0.19]
    assert [[try_["error"] for try_ in one["discarded"]] for one in rows[1:]] == [[0.01]] * 2
    found = report(rows, "cpu")
    assert (found["num_unsteady"], found["num_repeated"], found["num_discarded"]) == (1, 2, 2)
    assert found["errors_of_steady_runs"] == (0.19, 0.19)
    assert found["errors_with_what_was_discarded"] == (0.01, 0.19)
    left = not_run(rows, "cpu")
    steady = report(rows[1:], "cpu")
    assert steady["held_so_far"] is False  # 19 % in the middle
    good = report([{**one, "error": 0.05} for one in rows[1:]], "cpu")
    assert good["held_so_far"] and not good["holds"]  # others are not run yet
    assert set(left) == {case.name for case in CPU}
    assert set(STRATEGIES) - set(left[first.name]) == {"auto", "ratel"}
    assert left[CPU[2].name] == list(STRATEGIES)


def test_a_run_that_never_was_steady_is_a_miss_and_no_later_part_makes_it_again() -> None:
    first = CPU[0]
    bench = Scripted(0.3, 0.2, 0.0, 0.1, 0.0)
    rows = run_all(bench, [first], ["auto"], minutes=1, times=1, repeat=1, before=[])
    assert len(bench.made) == 2
    rows = run_all(bench, [first], ["auto"], minutes=1, times=1, repeat=3, before=rows)
    assert len(bench.made) == 4 and len(rows) == 1
    assert [one["error"] for one in rows[0]["discarded"]] == [0.3, 0.2, 0.0]
    assert not rows[0]["steady"] and rows[0]["error"] == 0.1
    again = run_all(bench, [first], ["auto"], minutes=1, times=1, repeat=3, before=rows)
    assert again == rows and len(bench.made) == 4
    assert not verdict(first.name, rows, "cpu")["holds"]
    assert verdict(first.name, [{**rows[0], "steady": True}], "cpu")["holds"]


def test_what_is_known_is_not_run_again_and_may_be_run_several_times() -> None:
    first = CPU[0]
    known = [row(first.name, name, steady=True) for name in STRATEGIES]
    bench = Scripted()
    assert run_all(bench, [first], None, minutes=1, times=1, repeat=3, before=known) == known
    assert bench.made == []
    rows = run_all(bench, [first], ["auto"], minutes=1, times=3, repeat=3, before=known)
    assert len(rows) == len(known) + 2 and bench.made == [(first.name, "auto")] * 2
    bench.made.clear()  # a part that ended between two times of the last strategy is gone on with
    rows = run_all(bench, [first], None, minutes=1, times=2, repeat=3, before=rows)
    assert bench.made == [(first.name, name) for name in STRATEGIES if name != "auto"]
    assert len(rows) == 2 * len(STRATEGIES) + 1


def test_a_sample_is_the_mean_of_as_many_steps_as_take_its_time() -> None:
    bench = Scripted()
    bench._steps = None
    assert [bench._per_sample(planned) for planned in (0.3, SAMPLE_SECONDS, 2.0)] == [7, 2, 1]
    assert means([1.0, 2.0, 3.0, 6.0], 2) == [1.5, 4.5]


def test_a_result_of_another_form_is_refused(tmp_path: Path) -> None:
    """Its rows have other figures, so that nothing could be said of both."""
    path = tmp_path / "result.json"
    assert read_rows(path) == []
    path.write_text(json.dumps({"runs": [{"case": "old"}]}))
    with pytest.raises(ValueError, match="another version of this script"):
        read_rows(path)
    path.write_text(json.dumps({"form": FORM, "runs": [{"case": "one"}]}))
    assert read_rows(path) == [{"case": "one"}]


def test_a_refused_run_is_none_and_a_failed_one_or_too_much_memory_is_a_miss() -> None:
    name = CPU[0].name
    auto = row(name, "auto", steady=True)
    refused = {"case": name, "strategy": "ratel", "refused": "it commits every step"}
    assert verdict(name, [auto, refused], "cpu")["holds"]
    failed = {"case": name, "strategy": "ratel", "failed": "OSError"}
    assert not verdict(name, [auto, failed], "cpu")["holds"]
    swollen = {**auto, "resident_bytes": 2**20 + 101 * 2**20}
    assert not verdict(name, [swollen], "cpu")["memory_as_planned"]
