"""One figure of a calibration: how many calls it is taken from, and which of them count."""

from collections.abc import Sequence

import pytest
import torch

from headrace.engine.stopwatch import Stopwatch, usual


class Scripted(Stopwatch):
    """Calls take the seconds that are given, and the last ones again and again."""

    def __init__(self, times: Sequence[float], part_seconds: float, *, device: str = "cpu") -> None:
        super().__init__(torch.device(device), part_seconds, least=1)
        self._times = list(times)
        self.calls = 0

    def once(self, call: object) -> float:
        self.calls += 1
        return self._times[min(self.calls, len(self._times)) - 1]


def test_a_call_that_was_held_up_neither_stands_for_all_nor_ends_the_figure() -> None:
    """A long layer's figure was once a single call, held up to thirty times its seconds."""
    warm, held_up, usually = 5.0, 267.0, 8.8
    clock = Scripted([warm, held_up, usually], part_seconds=0.02)
    assert clock.seconds(lambda: None) == usually
    assert clock.calls == 3
    late = Scripted([warm, usually, held_up], part_seconds=0.02)
    assert late.seconds(lambda: None) == usually


def test_a_figure_has_its_seconds_beside_the_longest_call() -> None:
    clock = Scripted([1.0, 0.5, 0.1], part_seconds=0.25)
    assert clock.seconds(lambda: None) == pytest.approx(0.1)
    assert clock.calls == 1 + 1 + 3


def test_what_differs_as_calls_do_is_counted_as_a_whole() -> None:
    assert usual([1.0, 1.5]) == 1.25
    assert usual([3.0]) == 3.0
    assert usual([1.0, 1.0, 1.9]) == pytest.approx(1.3)
    assert usual([1.0, 1.0, 2.1]) == 1.0
    assert usual([1.0] * 4 + [3.5]) == pytest.approx(1.5)
    assert usual([1.0] * 4 + [4.5]) == 1.0
