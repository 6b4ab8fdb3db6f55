"""Stripes go to volumes by their speed, and never more than a volume can hold."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.shares import deal_of, shares_of

PLENTY = 10**15


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(1, 12), min_size=1, max_size=6))
def test_a_deal_follows_the_speeds(rates: list[float]) -> None:
    deal = deal_of(shares_of(rates, [PLENTY] * len(rates), 10**12))
    counts = Counter(deal)
    for i, rate in enumerate(rates):
        assert abs(counts[i] / len(deal) - rate / sum(rates)) <= 1 / len(deal)


@pytest.mark.parametrize(
    ("rates", "deal"),
    [
        ([5.0], (0,)),
        ([3.0, 3.0, 3.0], (0, 1, 2)),
        ([2.0, 1.0], (0, 1, 0)),
        ([1.0, 2.0, 4.0], (2, 1, 2, 0, 2, 1, 2)),
        ([7.0, None, 1.0], (0, 1, 2)),
    ],
)
def test_known_deals(rates: list[float | None], deal: tuple[int, ...]) -> None:
    assert deal_of(shares_of(rates, [PLENTY] * len(rates), 10**12)) == deal


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1, 12), st.integers(0, 10**9)), min_size=1, max_size=6),
    st.integers(1, 10**9),
)
def test_no_volume_gets_more_than_it_holds(
    volumes: list[tuple[float, int]], total_bytes: int
) -> None:
    rates, capacities = [list(column) for column in zip(*volumes, strict=True)]
    shares = shares_of(rates, capacities, total_bytes)
    assert sum(shares) == pytest.approx(1)
    if sum(capacities) > total_bytes:
        for share, capacity in zip(shares, capacities, strict=True):
            assert share * total_bytes <= capacity * 1.0001 + 1


def test_a_small_fast_volume_is_filled_and_the_others_take_the_rest() -> None:
    assert shares_of([8.0, 1.0, 1.0], [100, 10_000, 10_000], 1000) == pytest.approx(
        [0.1, 0.45, 0.45]
    )


def test_a_volume_without_room_is_left_out() -> None:
    assert set(deal_of(shares_of([1.0, 1.0], [0, PLENTY], 10**9))) == {1}
