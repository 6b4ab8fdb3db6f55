"""What other work took of the processors is known from the kernel's own counts."""

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest

from headrace.storage import BUSY_SHARE, HeldUp, busy_words


def write_proc(proc: Path, tasks: dict[str, tuple[int, int]], used: int, stolen: int) -> None:
    for name, (ran, waited) in tasks.items():
        task = proc / "self" / "task" / name
        task.mkdir(parents=True, exist_ok=True)
        (task / "schedstat").write_text(f"{ran} {waited} 7\n")
    (proc / "stat").write_text(f"cpu  {used} 0 0 500 0 0 0 {stolen} 0 0\ncpu0 1 2 3\n")


def test_waiting_for_a_processor_counts_and_so_does_what_a_hypervisor_took(tmp_path: Path) -> None:
    write_proc(tmp_path, {"1": (100, 50), "2": (0, 0), "3": (10, 10)}, used=100, stolen=10)
    watch = HeldUp(tmp_path)
    assert watch.share() == 0
    # Thread 3 has ended, 4 began; half the time is waited, and a fifth of the ticks are stolen.
    (tmp_path / "self" / "task" / "3" / "schedstat").unlink()
    write_proc(tmp_path, {"1": (400, 250), "2": (100, 200), "4": (0, 9000)}, used=180, stolen=30)
    assert watch.share() == pytest.approx(1 - 0.5 * 0.8)


def test_a_kernel_that_does_not_count_is_no_busy_one(tmp_path: Path) -> None:
    assert HeldUp(tmp_path / "nowhere").share() == 0


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count")
def test_a_process_that_shares_its_core_is_held_up_for_half_of_the_time() -> None:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # of this thread; what it starts inherits it
    try:
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            watch, ends = HeldUp(), perf_counter() + 0.5
            while perf_counter() < ends:
                pass
            assert watch.share() > 2 * BUSY_SHARE
        finally:
            other.kill()
            other.wait()
    finally:
        os.sched_setaffinity(0, cores)


def test_little_of_it_is_not_worth_a_word() -> None:
    assert busy_words(0.05) == ""
    assert busy_words(0.384) == "measured while other work held this box up for 38 % of the time"
