"""The Triton kernels give the bits of their plain torch twins."""

import pytest
import torch

from headrace.engine import TrainConfig
from headrace.engine.clip import round_and_square
from headrace.engine.optimizer import AdamScalars, adamw_torch, adamw_update
from headrace.engine.state import StateViews, split_master

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
NUM = 2**24
SPECIAL = [0.0, -0.0, 1e-45, -1e-38, 3e38, -3e38, 1.0, 65504.0, 1e-8, 0.3333333]


def _inputs(grad_dtype: torch.dtype, device: str) -> tuple[StateViews, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    exponents = torch.randint(-30, 20, (NUM,), generator=generator).float().exp2()
    master = torch.randn(NUM, generator=generator) * exponents
    grad = torch.randn(NUM, generator=generator) * exponents.flip(0)
    m = torch.randn(NUM, generator=generator) * exponents.flip(0)
    v = torch.rand(NUM, generator=generator) * exponents.flip(0) ** 2
    for i, value in enumerate(SPECIAL):
        for j, other in enumerate(SPECIAL):
            k = i * len(SPECIAL) + j
            master[k], grad[k], m[k], v[k] = value, other, other, abs(value)
    views = StateViews(
        torch.empty(NUM, dtype=torch.bfloat16),
        torch.empty(NUM, dtype=torch.int16),
        m,
        v,
    )
    split_master(master, views.hi, views.lo)
    moved = StateViews(*(t.to(device) for t in (views.hi, views.lo, views.exp_avg, v)))
    return moved, grad.to(grad_dtype).to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adamw_is_bit_equal_to_its_twins_on_gpu_and_cpu(dtype: torch.dtype) -> None:
    config = TrainConfig(model="m", dataset="d", learning_rate=3e-4, weight_decay=0.1)
    scalars = AdamScalars.at(17, learning_rate=3e-4, config=config)
    results = []
    forms = [
        (device, update) for device in ("cuda", "cpu") for update in (adamw_update, adamw_torch)
    ]
    for device, update in forms:
        state, grad = _inputs(dtype, device)
        update(state, grad, torch.tensor(0.37, device=device), scalars)
        results.append([t.cpu() for t in (state.hi, state.lo, state.exp_avg, state.exp_avg_sq)])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            bits = torch.int16 if one.element_size() == 2 else torch.int32
            different = (one.view(bits) != two.view(bits)).nonzero()
            assert different.numel() == 0, f"{len(different)} differ, first {different[0]}"


@pytest.mark.parametrize("num", [2048, 4096 * 33, 4096 * 5 + 64])
def test_rounding_with_its_norm_agrees_with_float64(num: int) -> None:
    grad = torch.randn(num, device="cuda")
    kept = torch.empty(num, dtype=torch.bfloat16, device="cuda")
    squares = round_and_square(grad, kept)
    assert torch.equal(kept, grad.bfloat16())
    assert float(squares) == pytest.approx(float(kept.double().square().sum()), rel=1e-12)
    assert float(round_and_square(grad, kept)) == float(squares)
