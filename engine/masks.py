"""Which tokens attend to which: the mask of a layer, made where it is used."""

import torch
from torch import Tensor


def causal_mask(hidden: Tensor, window: int | None, *, additive: bool) -> Tensor | None:
    """A mask over (1, 1, queries, keys) for `hidden`, (rows, tokens, hidden).

    A token attends to itself and to those before it, with a `window` to that many in all. None
    where plain causality says the same, which fused attention has without a mask. An `additive`
    mask is always made: 0 where a token attends and the least number elsewhere, in hidden's
    dtype; the other is true where it attends. Making it anew for each call costs less than the
    scores that it covers, and holds tokens x tokens for one call at a time.
    """
    num_tokens = hidden.shape[1]
    slides = window is not None and num_tokens > window
    if not (slides or additive):
        return None
    places = torch.arange(num_tokens, device=hidden.device)
    distance = places[:, None] - places
    attends = distance >= 0
    if window is not None and slides:
        attends &= distance < window
    if not additive:
        return attends[None, None]
    mask = torch.zeros((num_tokens, num_tokens), dtype=hidden.dtype, device=hidden.device)
    return mask.masked_fill(~attends, torch.finfo(hidden.dtype).min)[None, None]
