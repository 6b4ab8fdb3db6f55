import pytest

from headrace.service.formats import FORMATS, SHARES, pick, shown, width


@pytest.mark.parametrize(
    ("form", "value", "told"),
    [
        ("size", 0, "0 B"),
        ("size", 999, "999 B"),
        ("size", 999.6, "1.00 kB"),
        ("size", 1_610_000_000, "1.61 GB"),
        ("size", 41_200_000_000, "41.2 GB"),
        ("size", 999_600_000_000, "1.00 TB"),
        ("rate", 6_800_000_000, "6.80 GB/s"),
        ("some", 0, "–"),
        ("count", 1_234_567, "1,234,567"),
        ("loss", 2.34567, "2.3457"),
        ("share", 0.425, "43 %"),
        ("percent", 3, "3 %"),
        ("per_second", 3581.4, "3,581"),
        ("per_second", 12.34, "12.3"),
        ("small", 0.00002, "2.00e-5"),
        ("small", 0, "0"),
        ("duration", 0.254, "254 ms"),
        ("duration", 0.0053, "5.30 ms"),
        ("duration", 0.9999, "1.00 s"),
        ("duration", 0, "0.00 s"),
        ("duration", 59.4, "59.4 s"),
        ("duration", 59.6, "1 min 00 s"),
        ("duration", 125, "2 min 05 s"),
        ("duration", 8040, "2 h 14 min"),
        ("duration", 300_000, "3 d 11 h"),
        ("celsius", 41.5, "42 °C"),
        ("steps", {"step": 1200, "total_steps": 5000}, "1,200 of 5,000"),
        ("steps", {}, "–"),
        ("used", {"total_bytes": 10_000, "free_bytes": 4_000}, "6.00 kB"),
    ],
)
def test_a_number_is_told_with_its_unit(form: str, value: object, told: str) -> None:
    assert shown(value, form) == told


def test_what_is_not_known_is_never_a_number() -> None:
    assert {shown(None, form) for form in FORMATS} == {"not known"}
    assert shown(None, "size", "–") == "–"
    assert {width(None, form) for form in SHARES} == {0.0}


@pytest.mark.parametrize(
    ("form", "value", "length"),
    [
        ("used", {"total_bytes": 8, "free_bytes": 2}, 75.0),
        ("used", {"total_bytes": 0, "free_bytes": 0}, 0.0),
        ("steps", {"step": 1, "total_steps": 3}, 33.33),
        ("share", 1.7, 100.0),
        ("share", -1, 0.0),
        ("traffic", {"traffic": None, "calibration": None}, 0.0),
        (
            "traffic",
            {
                "traffic": {"read_bytes_per_second": 3.0, "write_bytes_per_second": 1.0},
                "calibration": {"mixed_bytes_per_second": 8.0},
            },
            50.0,
        ),
    ],
)
def test_a_bar_is_a_part_of_a_whole(form: str, value: object, length: float) -> None:
    assert width(value, form) == length


def test_a_path_leads_through_objects_and_lists_or_nowhere() -> None:
    values = {"a": [{"b": 1}, {"b": 2}], "c": None}
    assert pick(values, "a.1.b") == 2
    for path in ("a.2.b", "a.x", "c.d", "e", "a.0.b.c"):
        assert pick(values, path) is None
