"""What keeping values in a narrower type makes of them."""

import torch
from torch import Tensor

BLOCK = 32  # values of a row that share a scale in Q8_0


def rounded(values: Tensor, kind: str) -> Tensor:
    """An fp32 tensor after it was kept as `kind`: float32, float16, bfloat16, or q8_0 by rows.

    Q8_0 (ggml): the scale of a block is its largest value / 127, kept as float16; the codes are
    value / scale, by the scale before it was rounded, to the nearest whole number, halves away
    from zero.
    """
    if kind != "q8_0":
        return values.to(getattr(torch, kind)).float()
    blocks = values.reshape(-1, BLOCK)
    scale = blocks.abs().amax(1, keepdim=True) / 127
    parts = torch.where(scale == 0, 0, blocks * (1 / scale))
    whole = parts.abs().floor()
    codes = parts.sign() * (whole + (parts.abs() - whole >= 0.5))
    return (codes * scale.half().float()).view_as(values)
