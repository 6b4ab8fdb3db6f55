"""Cores are counted as this process may use them."""

from pathlib import Path

import pytest

import headrace.engine.cores as cores
from headrace.engine.cores import physical_cores, usable_cores


def _topology(tree: Path, siblings: dict[int, str]) -> Path:
    for cpu, text in siblings.items():
        folder = tree / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n")
    return tree


def test_two_threads_of_a_core_count_once(tmp_path: Path) -> None:
    tree = _topology(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert physical_cores({0, 1, 2, 3}, tree) == 2
    assert physical_cores({0, 1}, tree) == 2
    assert physical_cores({1, 3}, tree) == 1


def test_without_a_topology_every_processor_is_a_core(tmp_path: Path) -> None:
    assert physical_cores({0, 5, 6}, tmp_path) == 3


@pytest.mark.parametrize(("quota", "wanted"), [(None, 8), (2.5, 2), (0.5, 1), (64.0, 8)])
def test_a_control_groups_share_bounds_the_cores(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, wanted: int
) -> None:
    monkeypatch.setattr(cores, "physical_cores", lambda cpus, tree: 8)
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert usable_cores() == wanted
