"""Learning rates: the promised curve, continuous whoever asks for which step."""

import pytest

from headrace.engine import TrainConfig
from headrace.engine.lr_schedule import rate_at


def _rates(schedule: str, warmup_ratio: float = 0.0, total: int = 10) -> list[float]:
    config = TrainConfig(
        model="m",
        dataset="d",
        learning_rate=1e-3,
        lr_schedule=schedule,  # type: ignore[arg-type]
        warmup_ratio=warmup_ratio,
    )
    return [rate_at(step, total_steps=total, config=config) for step in range(1, total + 1)]


def test_linear_falls_by_equal_steps_to_one_share_of_the_full_rate() -> None:
    assert _rates("linear") == pytest.approx([1e-3 * (1 - i / 10) for i in range(10)])


def test_cosine_is_half_way_down_in_the_middle() -> None:
    rates = _rates("cosine")
    assert rates[0] == 1e-3 and rates[5] == pytest.approx(0.5e-3)
    assert rates == sorted(rates, reverse=True)


def test_constant_is_constant() -> None:
    assert set(_rates("constant")) == {1e-3}


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_warm_up_rises_to_the_full_rate_and_the_fall_starts_there(schedule: str) -> None:
    rates = _rates(schedule, warmup_ratio=0.3)
    assert rates[:4] == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3, 1e-3])


def test_a_run_of_one_step_trains() -> None:
    assert _rates("linear", warmup_ratio=0.5, total=1) == [1e-3]
