"""Figures taken in rounds: the middle one of each counts, or the mean of all that are like it."""

from dataclasses import replace

import pytest

from headrace.engine.rates import LayerRate, Rates, ShapeRates, default_rates
from headrace.engine.rounds import box_of_rounds, shape_of_rounds


def slowed(rates: Rates, factor: float) -> Rates:
    """The same box while something else takes its time."""
    return replace(
        rates,
        h2d=rates.h2d / factor,
        d2h=rates.d2h / factor,
        host_memory=rates.host_memory / factor,
        device_memory=rates.device_memory / factor,
        visit_seconds=rates.visit_seconds * factor,
        work={work: rate / factor for work, rate in rates.work.items()},
    )


def shape(factor: float, *tokens: int) -> ShapeRates:
    layers = [LayerRate(tokens=n, forward_flops=n * factor, backward_flops=n * factor / 2)
              for n in tokens]  # fmt: skip
    return ShapeRates(
        measured_at="now", layers=tuple(layers), head_flops=factor, work={"join": factor}
    )


def test_two_rounds_of_five_that_were_disturbed_change_nothing() -> None:
    box = replace(default_rates("cpu"), origin="measured", visit_seconds=1e-4)
    assert box_of_rounds([slowed(box, 3), box, slowed(box, 1.4), box, box]) == box
    assert shape_of_rounds([shape(one, 64, 256) for one in (8, 8, 3, 8, 2)]) == shape(8, 64, 256)


def test_a_layer_takes_the_mean_of_the_seconds_that_its_rounds_took() -> None:
    """A step meets slow tenths of a second as calibration did: by the middle of these it would be
    planned at 1/8."""
    found = shape_of_rounds([shape(one, 64) for one in (8, 8, 8, 5, 5)])
    assert found.head_flops == pytest.approx(1 / (0.6 / 8 + 0.4 / 5))
    slow = [replace(shape(8, 64), visit_seconds=one) for one in (1e-3, 1e-3, 1.5e-3, 9e-3)]
    assert shape_of_rounds(slow).visit_seconds == pytest.approx(3.5e-3 / 3)


def test_a_rate_and_seconds_leave_out_the_same_rounds() -> None:
    """Of an even number too, where there are two in the middle."""
    rounds = [replace(shape(1 / one, 64), visit_seconds=one) for one in (1.0, 1.0, 1.5, 2.5)]
    found = shape_of_rounds(rounds)
    assert found.visit_seconds == pytest.approx(1.5)
    assert found.head_flops == pytest.approx(1 / 1.5)


def test_rates_of_kept_layers_are_taken_apart_and_stay_unknown_where_no_round_has_them() -> None:
    def with_kept(rate: float) -> ShapeRates:
        (layer,) = shape(8, 64).layers
        kept = replace(layer, kept_forward_flops=rate, kept_backward_flops=2 * rate)
        return replace(shape(8, 64), layers=(kept,))

    assert shape_of_rounds([with_kept(one) for one in (5, 2, 5)]) == with_kept(5)
    assert shape_of_rounds([shape(8, 64)] * 3).layers[0].kept_forward_flops is None


def test_where_all_rounds_were_disturbed_the_best_of_each_figure_counts() -> None:
    box = replace(default_rates("cpu"), origin="measured", visit_seconds=1e-4)
    assert box_of_rounds([slowed(box, 3), box, slowed(box, 1.4)], best=True) == box
    slow, fast = shape(3, 64, 256), shape(8, 64, 256)
    mixed = replace(fast, head_flops=2.0, work={"join": 9.0})
    found = shape_of_rounds([slow, mixed], best=True)
    assert found == replace(fast, head_flops=3.0, work={"join": 9.0})


def test_both_directions_at_once_stay_unknown_where_no_round_has_them() -> None:
    box = default_rates("cpu")
    assert box_of_rounds([box, box]).both is None
    assert box_of_rounds([replace(box, both=2e9), replace(box, both=4e9)]).both == 3e9


def test_a_size_that_a_slow_round_did_not_come_to_is_left_out() -> None:
    found = shape_of_rounds([shape(8, 64, 256), shape(2, 64), shape(8, 64, 256)])
    assert [(one.tokens, one.forward_flops) for one in found.layers] == [(64, 512)]
