"""The tightest control group counts, wherever it is in the tree."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.storage.cgroup import GroupMemory, cpu_quota, tightest_group

GIB = 2**30


class Tree:
    """A fake /sys/fs/cgroup and /proc/self/cgroup."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "cgroup"
        self.own = directory / "own"
        self.root.mkdir()

    def group(self, path: str, files: Mapping[str, object]) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (self.root / path / name).write_text(f"{value}\n")

    def tightest(self, own: str) -> GroupMemory | None:
        self.own.write_text(own)
        return tightest_group(self.root, self.own)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_limit_above_the_process_counts(tree: Tree) -> None:
    tree.group("user.slice", {"memory.max": 8 * GIB, "memory.current": 5 * GIB})
    tree.group("user.slice/shell", {"memory.max": "max", "memory.current": GIB})
    assert tree.tightest("0::/user.slice/shell\n") == GroupMemory(
        limit_bytes=8 * GIB, free_bytes=3 * GIB
    )


def test_the_group_that_leaves_least_counts_not_the_lowest_limit(tree: Tree) -> None:
    tree.group("", {"memory.max": 8 * GIB, "memory.current": 7 * GIB})
    tree.group("job", {"memory.max": 4 * GIB, "memory.current": GIB})
    found = tree.tightest("0::/job\n")
    assert found and found.free_bytes == GIB


def test_page_cache_that_can_go_is_not_used(tree: Tree) -> None:
    tree.group("job", {"memory.max": 4 * GIB, "memory.current": 4 * GIB,
                       "memory.stat": f"anon {GIB}\ninactive_file {3 * GIB}"})  # fmt: skip
    found = tree.tightest("0::/job\n")
    assert found and found.free_bytes == 3 * GIB


def test_version_1_has_a_tree_of_its_own_for_memory(tree: Tree) -> None:
    tree.group("memory", {"memory.limit_in_bytes": 2**63 - 4096, "memory.usage_in_bytes": GIB})
    tree.group("memory/docker/x", {"memory.limit_in_bytes": 3 * GIB,
                                   "memory.usage_in_bytes": 2 * GIB})  # fmt: skip
    own = "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n1:name=systemd:/docker/x\n"
    assert tree.tightest(own) == GroupMemory(limit_bytes=3 * GIB, free_bytes=GIB)


@pytest.mark.parametrize("path", ["/docker/gone", "/../other"])
def test_a_container_that_sees_its_group_as_the_root_finds_it(tree: Tree, path: str) -> None:
    tree.group("", {"memory.max": 2 * GIB, "memory.current": GIB})
    found = tree.tightest(f"0::{path}\n")
    assert found and found.free_bytes == GIB


def test_without_a_limit_there_is_none(tree: Tree) -> None:
    tree.group("job", {"memory.max": "max", "memory.current": GIB})
    assert tree.tightest("0::/job\n") is None
    assert tightest_group(tree.root, tree.root / "missing") is None


def test_the_smallest_share_of_processors_counts(tree: Tree) -> None:
    tree.group("slice", {"cpu.max": "250000 100000"})
    tree.group("slice/job", {"cpu.max": "max 100000"})
    tree.own.write_text("0::/slice/job\n")
    assert cpu_quota(tree.root, tree.own) == 2.5


def test_version_1_has_a_tree_of_its_own_for_processors(tree: Tree) -> None:
    tree.group("cpu", {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100000})
    tree.group("cpu/docker/x", {"cpu.cfs_quota_us": 400000, "cpu.cfs_period_us": 100000})
    tree.own.write_text("5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n")
    assert cpu_quota(tree.root, tree.own) == 4


def test_without_a_share_there_is_none(tree: Tree) -> None:
    tree.group("job", {"cpu.max": "max 100000"})
    tree.own.write_text("0::/job\n")
    assert cpu_quota(tree.root, tree.own) is None
