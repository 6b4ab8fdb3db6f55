"""Layer inputs: the first ones wait farthest away, and come back in the order of backward."""

from headrace.engine.parked import fetched_after, parked_tiers


def test_the_last_layers_stay_nearest_and_those_below_backward_leave_nothing() -> None:
    assert parked_tiers(6, 0, nvme=3, host=2) == ("nvme",) * 3 + ("host",) * 2 + ("device",)
    assert parked_tiers(4, 1, nvme=1) == ("device", "nvme", "device", "device")


def test_layer_by_layer_all_comes_back_once_all_is_kept() -> None:
    assert fetched_after([0, 2], 2, "layers") == {(2, 1): [(2, 0), (2, 1), (0, 0), (0, 1)]}


def test_microbatch_by_microbatch_each_comes_back_before_the_next_is_kept() -> None:
    assert fetched_after([0, 2], 2, "microbatches") == {
        (2, 0): [(2, 0), (0, 0)],
        (2, 1): [(2, 1), (0, 1)],
    }
    assert fetched_after([], 2, "layers") == {}
