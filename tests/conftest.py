"""For every test: one thread per process, since the models here are too small to share out.

Nor is anything measured before a job: drives and layers as small as these tell nothing.
"""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HEADRACE_CALIBRATE", "false")
os.environ.setdefault("HEADRACE_OUTPUT", "text")  # what tests read as people do


# Files that take longest, the longest first: begun last, one of them would leave all cores but one
# without work. A new file of half a minute may be missing here without harm.
LONGEST = (
    "e2e/test_line.py",
    "engine/test_bit_law.py",
    "engine/test_compile.py",
    "service/test_page_browser.py",
    "engine/test_brute_force.py",
    "service/test_daemon.py",
    "engine/test_lora.py",
    "e2e/test_crash_laws.py",
    "engine/test_calibration.py",
    "service/test_page_real_run.py",
    "engine/test_families.py",
    "test_bench_gpu_step.py",
    "engine/test_strategies.py",
    "e2e/test_openai_conformance.py",
    "engine/test_dpo.py",
    "test_api_fuzz.py",
    "engine/test_gpu_plans.py",
    "service/test_worker.py",
    "engine/test_gguf_real.py",
    "test_bench_overlay.py",
    "service/test_cli_plan.py",
    "storage/test_crash.py",
)
MEMORY_BYTES = 2 * 2**30  # of one process with those that it starts
UNFROZEN = 50_000  # objects, of which a collection of garbage takes twenty milliseconds


def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: tests of the service spend a third of their time
    waiting for other processes, those of the engine a fifth for a drive. Fewer where memory would
    not do for them and the processes that they start."""
    most = psutil.virtual_memory().available // MEMORY_BYTES
    return max(1, min(len(os.sched_getaffinity(0)) + 1, most))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first; the order is kept within each and of the others."""
    here = Path(__file__).parent
    rank = {here / name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is imported out of every collection of garbage: a run of the engine ends with one,
    which walked all of torch and transformers, a third of the processor's time in those tests.
    While it is imported there is next to no garbage, and looking for it took two seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Likewise what a test was the first to import or to compile."""
    try:
        yield
    finally:
        if len(gc.get_objects()) > UNFROZEN:
            gc.collect()
            gc.freeze()
