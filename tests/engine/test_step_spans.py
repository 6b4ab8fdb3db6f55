"""The picture of a step: every second of it where it was."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.engine import StepReport
from headrace.engine.pipeline import VisitTimes
from headrace.engine.step_spans import MAX_SPANS, StepPictures, compute_lane, picture, thinned
from headrace.engine.visits import Phase
from headrace.storage import LinkStats

NOTHING: dict[str, Any] = {field.name: 0 for field in fields(StepReport)}
REPORT = StepReport(
    **NOTHING
    | {
        "step": 7,
        "step_seconds": 10.0,
        "forward_seconds": 3.0,
        "backward_seconds": 4.0,
        "optimizer_seconds": 1.5,
        "commit_seconds": 1.0,
    }
)
VISITS: list[tuple[Phase, VisitTimes]] = [
    ("forward", VisitTimes(stall_read=0.5, stall_write=9.0, read=0.3, compute=1.0)),
    ("forward", VisitTimes(compute=1.5)),
    ("backward", VisitTimes(compute=4.0)),
    ("optimizer", VisitTimes(compute=1.0)),
]


def test_work_and_waits_stand_in_their_order_and_end_with_the_commit() -> None:
    lane = [
        (what, start, stop) for what, start, stop in compute_lane(REPORT, VISITS) if stop > start
    ]
    assert lane == [
        ("stall_write", 0.5, 0.7),
        ("stall_read", 0.7, 1.0),
        ("forward", 1.0, 2.0),
        ("forward", 2.0, 3.5),
        ("backward", 3.5, 7.5),
        ("optimizer", 8.0, 9.0),  # half a second for the norm before it
        ("commit", 9.0, 10.0),
    ]


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (VisitTimes(stall_read=0.0, stall_write=5.0, read=1.0), 0.0),  # the reader was ahead
        (VisitTimes(stall_read=1.0, stall_write=5.0, read=1.0), 0.0),  # it waited while others ran
        (VisitTimes(stall_read=3.0, stall_write=5.0, read=1.0), 2.0),
        (VisitTimes(stall_read=3.0, stall_write=0.5, read=1.0), 0.5),
    ],
)
def test_a_wait_is_blamed_on_writes_as_far_as_there_was_no_slot(
    times: VisitTimes, seconds: float
) -> None:
    assert times.waited_for_write == seconds


def test_links_are_told_from_the_beginning_of_the_step_and_within_it() -> None:
    spans = ((95.0, 99.5), (99.8, 101.0), (104.0, 105.0), (109.0, 111.0), (112.0, 113.0))
    found = picture(REPORT, VISITS, {"nvme_read": LinkStats(spans=spans)}, started=100.0)
    assert (found["step"], found["seconds"]) == (7, 10.0)
    assert found["lanes"]["nvme_read"] == [
        ["nvme_read", 0.0, 1.0], ["nvme_read", 4.0, 5.0], ["nvme_read", 9.0, 10.0],
    ]  # fmt: skip


def test_a_lane_of_many_pieces_is_thinned_and_keeps_its_extent() -> None:
    lane: list[Any] = [("h2d", i / 1000, i / 1000 + 0.0005) for i in range(10_000)]
    kept = thinned(lane, 10.0)
    assert len(kept) <= MAX_SPANS
    assert kept[0][1] == 0.0 and kept[-1][2] == pytest.approx(9.9995)


def test_a_picture_is_whole_and_not_taken_more_than_once_a_second(tmp_path: Path) -> None:
    pictures = StepPictures(tmp_path)
    for step in (1, 2, 3):
        pictures.tell(replace(REPORT, step=step), [], dict, started=0.0)
    assert json.loads((tmp_path / "timeline.json").read_text())["step"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["timeline.json"]
