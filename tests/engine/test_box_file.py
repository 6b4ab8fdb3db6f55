"""Boxes from files: every figure has a source, and the reference tables come out of them."""

from pathlib import Path

import pytest

from headrace.engine import BadBoxFile, TrainConfig, make_plan, read_box, shape_spec, shipped_boxes

BOX = """
name = "a box"
[memory]
device_bytes = { value = 80e9, source = "s" }
host_bytes = { value = 256e9, source = "s" }
[rates]
h2d = { value = 50e9, source = "s" }
d2h = { value = 50e9, source = "s" }
host_memory = { value = 200e9, source = "s" }
device_memory = { value = 3e12, source = "s" }
flops = { value = 600e12, source = "s" }
[drive]
count = { value = 4, source = "s" }
bytes = { value = 4e12, source = "s" }
read = { value = 6e9, source = "s" }
write = { value = 4e9, source = "s" }
"""


@pytest.mark.parametrize("name", sorted(shipped_boxes()))
def test_every_shipped_box_plans_a_model_and_says_that_it_is_planned(name: str) -> None:
    box = read_box(name)
    config = TrainConfig(
        model="m", dataset="d", device="cuda", compute_dtype="bfloat16", batch_rows=4,
        microbatch_rows=1, loss_chunk_tokens=1024,
    )  # fmt: skip
    spec = shape_spec("llama-8b-vocab-32k", layers=8)
    forecast = make_plan(spec, config, longest_row_tokens=512, box=box).forecast
    assert forecast.origin == "described" and forecast.box
    assert forecast.tokens_per_second > 0


def test_drives_of_a_box_work_together(tmp_path: Path) -> None:
    path = tmp_path / "box.toml"
    path.write_text(BOX)
    box = read_box(str(path))
    drives = box.known_rates().drives(list(box.volumes))
    assert (drives.read, drives.write) == (24e9, 16e9)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('h2d = { value = 50e9, source = "s" }', "", r"\[rates\] has no h2d"),
        ('h2d = { value = 50e9, source = "s" }', "h2d = 50e9", r"rates.h2d is .* wanted a table"),
        ('value = 80e9, source = "s"', 'value = 80e9, source = ""', "device_bytes has no source"),
        ("value = 6e9", "value = -6e9", "drive.read is .* above 0"),
        ("[drive]", "[disk]", r"no section \[drive\]"),
        ("d2h =", "d2hh =", r"does not know d2hh"),
        ("[memory]", "[memory", "box.toml: "),
    ],
)
def test_a_box_that_is_wrong_is_refused_by_place(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    path = tmp_path / "box.toml"
    path.write_text(BOX.replace(old, new))
    with pytest.raises(BadBoxFile, match=said):
        read_box(str(path))


def test_an_unknown_box_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadBoxFile, match="gh200, h200-pcie"):
        read_box("tardis")
