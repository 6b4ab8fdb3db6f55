"""For every test: one thread per process, since the models here are too small to share out.

Nor is anything measured before a job: drives and layers as small as these tell nothing.
"""

import gc
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HEADRACE_CALIBRATE", "false")
os.environ.setdefault("HEADRACE_OUTPUT", "text")  # what tests read as people do


def pytest_collection_finish() -> None:
    """Keep what was imported out of every collection of garbage: a run of the engine ends with one,
    which walked all of torch and transformers, a third of the processor's time in those tests."""
    gc.collect()
    gc.freeze()
