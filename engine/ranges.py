"""Work on a long array, shared out in ranges to threads that let go of Python's lock."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

_ALIGN = 4096  # elements: no two ranges share a page of any component
_MIN_RANGE = 2**16  # elements: below it, handing over takes longer than the work
_RANGES_PER_THREAD = 4  # so that one busy core does not hold up the rest


class RangePool:
    """Threads that share work by ranges of elements."""

    def __init__(self, num_threads: int, name: str) -> None:
        self.num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads, name)

    def run(self, num_elements: int, work: Callable[[int, int], None]) -> None:
        """Call `work(start, stop)` for ranges that make up all elements; returns when all ended.

        The first exception of a range is raised, after every range has ended.
        """
        ranges = split_ranges(num_elements, self.num_threads * _RANGES_PER_THREAD)
        if self.num_threads == 1 or len(ranges) == 1:
            work(0, num_elements)
            return
        futures = [self._pool.submit(work, start, stop) for start, stop in ranges]
        wait(futures)
        for future in futures:
            future.result()

    def close(self) -> None:
        """End the threads once their work is done."""
        self._pool.shutdown()


def split_ranges(num_elements: int, most: int) -> list[tuple[int, int]]:
    """At most `most` ranges of about equal length that cover `num_elements` in order."""
    count = max(1, min(most, num_elements // _MIN_RANGE))
    length = -(-num_elements // count // _ALIGN) * _ALIGN
    starts = range(0, num_elements, max(length, 1))
    return [(start, min(start + length, num_elements)) for start in starts]
