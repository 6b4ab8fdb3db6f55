"""Memory that was freed, given back to the system: the C library keeps it for itself otherwise.

What one job frees counts against the budget of the next in the same process. Activations smaller
than the allocator's threshold for mapping lie on its heap, and one live object above them keeps all
that is free below: 200 MiB after a run of 500.
"""

import ctypes


def trim_heap() -> None:
    """Give every free page of the C library's heap back (malloc_trim(3)). Not every C library can;
    one that cannot keeps what it has."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
