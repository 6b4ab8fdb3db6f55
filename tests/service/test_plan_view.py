from typing import Any

from headrace.service.plan_view import advice, homes, plan_groups, span

FORECAST = {
    "step_seconds": {"expected": 4.0, "low": 3.6, "high": 4.8},
    "step": {
        "phases": [{"phase": "forward", "seconds": 1.5}, {"phase": "backward", "seconds": 2.5}],
        "link_bytes": {"nvme_read": 16e9, "nvme_write": 0, "h2d": 16e9, "d2h": 12e9},
    },
    "tokens_per_second": 2048.4,
    "wear": {"step_bytes": 12e9, "share": 0.000421},
}
PLAN = {
    "forecast": FORECAST,
    "total_steps": 900,
    "total_device_bytes": 70e9,
    "total_host_bytes": 90e9,
    "volume_bytes": 192e9,
    "tiers": ["nvme", "nvme", "host", "device"],
    "changes": [{"text": "2 x as many drives: +39 %"}],
}


def rows_of(plan: Any, *, on_cpu: bool) -> dict[str, Any]:
    groups = plan_groups(plan, on_cpu=on_cpu)
    return {row["name"]: (row["planned"], row["path"]) for _, rows in groups for row in rows}


def test_a_plan_is_told_line_by_line_with_its_measured_twin() -> None:
    assert rows_of(PLAN, on_cpu=False) == {
        "A step takes": ("4.00 s", "engine.step_time_s"),
        "Between": ("3.60 – 4.80 s", None),
        "Forward": ("1.50 s", "report.forward_seconds"),
        "Backward": ("2.50 s", "report.backward_seconds"),
        "Tokens a second": ("2,048", "engine.tokens_per_s"),
        "All steps": ("1 h 00 min", None),
        "Drive reads": ("16.0 GB", "report.links.nvme_read.payload_bytes"),
        "Drive writes": ("12.0 GB", "report.links.nvme_write.payload_bytes"),
        "Copies up": ("16.0 GB", "report.links.h2d.payload_bytes"),
        "Copies down": ("12.0 GB", "report.links.d2h.payload_bytes"),
        "Device memory": ("70.0 GB", "report.device_peak_bytes"),
        "Host memory": ("90.0 GB", "tier.host_bytes"),
        "Room on the drives": ("192 GB", None),
        "Of the drives' rated life": ("0.0421 %", None),
    }


def test_what_a_plan_does_not_say_is_left_out() -> None:
    assert plan_groups({}, on_cpu=False) == [] and homes({}) == {} and advice({}) == []
    assert [title for title, _ in plan_groups({"volume_bytes": 1}, on_cpu=True)] == ["Room"]


def test_a_plan_of_another_version_is_told_as_far_as_it_goes() -> None:
    forecast = {"step_seconds": {"expected": 1.5}, "conditions": []}
    assert rows_of({"forecast": forecast, "tiers": ["nvme"]}, on_cpu=False) == {
        "A step takes": ("1.50 s", "engine.step_time_s")
    }


def test_on_a_cpu_both_tiers_are_one_memory() -> None:
    rows = rows_of(PLAN, on_cpu=True)
    assert "Device memory" not in rows and "Host memory" not in rows
    assert rows["Memory"] == ("160 GB", "tier.host_bytes")


def test_a_span_names_its_unit_once() -> None:
    assert span(0.287, 0.382) == "287 – 382 ms"
    assert span(0.9, 1.4) == "900 ms – 1.40 s"
    assert span(50, 3700) == "50.0 s – 1 h 01 min"
    assert span(3600, 7200) == "1 h 00 min – 2 h 00 min"


def test_records_are_counted_by_home() -> None:
    assert homes(PLAN) == {
        "nvme": "2 of 4 records live here",
        "host": "1 of 4 records live here",
        "device": "1 of 4 records live here",
    }
    assert advice(PLAN) == ["2 x as many drives: +39 %"]
