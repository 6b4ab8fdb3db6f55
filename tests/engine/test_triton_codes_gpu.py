"""Decoding frozen weights on the GPU gives the bits of its plain torch twin, there and here."""

from typing import get_args

import pytest
import torch

from headrace.engine.base_codes import decode, decode_torch, encode
from headrace.engine.model import CODE_BLOCK, CodedFormat

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
NUM = 2**22 + 3 * 256  # no whole number of the kernels' blocks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("base", get_args(CodedFormat))
def test_decoding_is_bit_equal_to_its_twins(base: CodedFormat, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    sizes = torch.randint(-30, 20, (NUM // CODE_BLOCK,), generator=generator).float().exp2()
    weights = torch.randn(NUM, generator=generator) * sizes.repeat_interleave(CODE_BLOCK)
    code_dtype, count = (torch.uint8, NUM // 2) if base == "nf4" else (torch.int8, NUM)
    codes, scales = torch.empty(count, dtype=code_dtype), torch.empty(NUM // CODE_BLOCK)
    encode(weights, codes, scales, base)
    results = []
    for device in ("cuda", "cpu"):
        for form in (decode, decode_torch):
            out = torch.full((NUM,), float("nan"), dtype=dtype, device=device)
            form(codes.to(device), scales.to(device), out, base)
            results.append(out.cpu().view(torch.uint8))
    assert all(torch.equal(result, results[0]) for result in results[1:])
