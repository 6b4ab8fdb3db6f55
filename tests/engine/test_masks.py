"""Masks say which tokens a token attends to, as transformers' own masks do."""

import pytest
import torch
from transformers import MistralConfig
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from headrace.engine.masks import causal_mask

HIDDEN = torch.zeros(2, 24, 16)


def test_a_token_sees_itself_and_the_window_before_it() -> None:
    mask = causal_mask(HIDDEN, 8, additive=False)
    assert mask is not None and mask.shape == (1, 1, 24, 24)
    for token in range(24):
        seen = mask[0, 0, token].nonzero().flatten().tolist()
        assert seen == list(range(max(0, token - 7), token + 1))


@pytest.mark.parametrize("window", [8, 24, None])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_masks_are_those_of_transformers(window: int | None, attention: str) -> None:
    config = MistralConfig(sliding_window=window, attn_implementation=attention)
    make = create_causal_mask if window is None else create_sliding_window_causal_mask
    wanted = make(
        config=config, inputs_embeds=HIDDEN, attention_mask=None, cache=None,
        position_ids=torch.arange(24)[None],
    )  # fmt: skip
    mask = causal_mask(HIDDEN, window, additive=attention == "eager")
    if mask is None:  # plain causality
        assert wanted is None or torch.equal(wanted[0, 0], torch.ones(24, 24).tril().bool())
    else:
        assert wanted is not None and torch.equal(mask.expand_as(wanted), wanted)


def test_rows_within_the_window_need_no_mask() -> None:
    assert causal_mask(HIDDEN, 24, additive=False) is None
    assert causal_mask(HIDDEN, 23, additive=False) is not None
