"""The table of unmet experts: chances that add up, and what is known in closed form."""

import numpy as np
import pytest

from bench.unmet_experts import TOKENS, chosen_chances, popularities, shape_row


@pytest.mark.parametrize("kind", ["even", "log_normal", "zipf"])
def test_a_token_chooses_as_many_experts_as_it_has(kind: str) -> None:
    chances = chosen_chances(popularities(16)[kind], 4, draws=2_000)
    assert chances.sum() == pytest.approx(4) and chances.max() <= 1
    assert (np.ptp(chances) > 0) == (kind != "even")


def test_even_experts_are_left_out_as_the_formula_says() -> None:
    row = shape_row("qwen3-30b-a3b", draws=100)
    wanted = [(1 - 8 / 128) ** tokens for tokens in TOKENS]
    assert row["even"]["unmet"] == pytest.approx(wanted, rel=1e-2)
    assert 0.9 < row["experts_share_of_layer"] < 1
    assert row["layer_state_bytes"] > 128 * row["expert_state_bytes"]
