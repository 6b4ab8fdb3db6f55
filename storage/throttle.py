"""A slower drive on demand: a token bucket that holds no burst."""

import threading
import time


class Throttle:
    """Lets through `bytes_per_second`, reads and writes together, in order of arrival.

    n bytes take at least n / rate seconds, whatever the number of threads.
    """

    def __init__(self, bytes_per_second: int) -> None:
        if bytes_per_second < 1:
            raise ValueError(f"a throttle of {bytes_per_second} bytes a second moves nothing")
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def book(self, num_bytes: int) -> float:
        """Reserve the link for `num_bytes`; the monotonic time at which they are through."""
        with self._lock:
            self._free_at = max(time.monotonic(), self._free_at) + num_bytes / self._rate
            return self._free_at


def sleep_until(deadline: float) -> None:
    """Sleep to a monotonic time."""
    while (rest := deadline - time.monotonic()) > 0:
        time.sleep(rest)
