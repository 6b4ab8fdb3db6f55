"""The limits of host memory are read, told and heeded."""

from pathlib import Path

import pytest

from headrace.storage import GroupMemory, HostArena, NoSpace, memory_status
from headrace.storage.numa import cpus_near, parse_cpus


def _tree(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_limits_are_told(tmp_path: Path) -> None:
    sys = _tree(
        tmp_path / "sys",
        **{
            "kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "devices/system/node/node0/cpulist": "0-3\n",
            "devices/system/node/node1/cpulist": "4-7\n",
            "fs/cgroup/memory.max": "1000000\n",
            "fs/cgroup/memory.current": "400000\n",
        },
    )
    proc = _tree(
        tmp_path / "proc",
        **{"meminfo": "MemTotal: 9 kB\nMemAvailable:  2048 kB\n", "self/cgroup": "0::/\n"},
    )
    found = memory_status(proc=proc, sys=sys)
    assert found.available_bytes == 2048 * 1024
    assert (found.group_limit_bytes, found.group_free_bytes) == (1_000_000, 600_000)
    assert (found.transparent_huge_pages, found.numa_nodes) == ("madvise", 2)
    assert found.memlock_bytes is None or found.memlock_bytes >= 0


def test_what_is_not_there_is_unknown(tmp_path: Path) -> None:
    found = memory_status(proc=tmp_path, sys=tmp_path)
    assert found.available_bytes is None and found.group_limit_bytes is None
    assert (found.transparent_huge_pages, found.numa_nodes) == ("unknown", 1)


def test_an_arena_beyond_the_control_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group = GroupMemory(limit_bytes=5_000_000, free_bytes=3_000_000)
    monkeypatch.setattr("headrace.storage.memory.tightest_group", lambda: group)
    HostArena(3_000_000).close()
    with pytest.raises(NoSpace, match="3000001 bytes was asked for; .* allows 5000000"):
        HostArena(3_000_001)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-2,5\n", {0, 1, 2, 5}), ("7", {7}), ("\n", set()), ("0-1,4-5", {0, 1, 4, 5})],
)
def test_sets_of_processors_are_read(text: str, cpus: set[int]) -> None:
    assert parse_cpus(text) == cpus


def test_processors_beside_the_gpu_are_found(tmp_path: Path) -> None:
    nodes = {f"devices/system/node/node{i}/cpulist": f"{i * 4}-{i * 4 + 3}" for i in range(2)}
    gpu = {"bus/pci/devices/0000:3b:00.0/numa_node": "1\n"}
    sys = _tree(tmp_path / "two", **nodes, **gpu)
    assert cpus_near("0000:3b:00.0", sys=sys) == {4, 5, 6, 7}
    assert cpus_near("0000:99:00.0", sys=sys) == set()


def test_a_machine_with_one_node_needs_no_choice(tmp_path: Path) -> None:
    sys = _tree(tmp_path, **{"devices/system/node/node0/cpulist": "0-3"})
    assert cpus_near("0000:3b:00.0", sys=sys) == set()
