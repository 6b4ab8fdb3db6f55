"""Ranges cover every element once, and a failure in one is raised when all have ended."""

import pytest

from headrace.engine.ranges import RangePool, split_ranges


@pytest.mark.parametrize("num", [0, 1, 4095, 2**16, 2**16 + 1, 10**6 + 7, 2**24])
@pytest.mark.parametrize("most", [1, 4, 60])
def test_ranges_cover_every_element_once(num: int, most: int) -> None:
    ranges = split_ranges(num, most)
    assert len(ranges) <= most
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])][: len(ranges)]
    assert (ranges[-1][1] if ranges else 0) == num


def test_a_failure_is_raised_after_every_range_has_ended() -> None:
    ended: list[int] = []

    def work(start: int, stop: int) -> None:
        if start == 0:
            raise RuntimeError("the first range")
        ended.append(stop - start)

    num = 2**20
    pool = RangePool(2, "test")
    try:
        with pytest.raises(RuntimeError, match="the first range"):
            pool.run(num, work)
    finally:
        pool.close()
    assert sum(ended) == num - split_ranges(num, 8)[0][1]
