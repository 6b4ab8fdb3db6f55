"""For every test: one thread per process, since the models here are too small to share out."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
