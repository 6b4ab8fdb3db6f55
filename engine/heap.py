"""Memory that was freed, given back to the system: the C library keeps it for itself otherwise.

What one job frees counts against the budget of the next in the same process. Activations smaller
than the allocator's threshold for mapping lie on its heap, and one live object above them keeps all
that is free below: 200 MiB after a run of 500.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of mallopt(3)


def trim_heap() -> None:
    """Give every free page of the C library's heap back (malloc_trim(3)). Not every C library can;
    one that cannot keeps what it has."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def fix_thresholds(num_bytes: int, *, num_arenas: int) -> None:
    """From now on what is freed goes back to the system at once, of pieces from `num_bytes` on.

    What MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_ and MALLOC_ARENA_MAX do
    for a process that is started, for one that runs. It keeps less memory, and compute pays for it
    in page faults: what is measured without this does not hold for a process with it. A C library
    that has no mallopt(3) is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, num_bytes)
        mallopt(_MMAP_THRESHOLD, num_bytes)
        mallopt(_ARENA_MAX, num_arenas)
