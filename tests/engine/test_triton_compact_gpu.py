"""The Triton kernel of compact formats gives the bits of its plain torch twin, on GPU and CPU."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from headrace.engine import TrainConfig
from headrace.engine.adamw import AdamScalars
from headrace.engine.adamw_compact import adamw_matrices_torch
from headrace.engine.optimizer import adamw_update
from headrace.engine.state import LayerViews, MatrixViews, StateViews

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
NUM = 2**22 + 256 * 3  # no whole number of a program's elements
FORMATS = {"q8": (True, True), "sr_bf16": (False, False), "sr_q8": (False, True)}
SPECIAL = [0.0, -0.0, 1e-45, -1e-38, 3e38, -3e38, 1.0, 65504.0, 1e-8, 0.3333333]


def _inputs(state_format: str) -> tuple[MatrixViews, torch.Tensor]:
    """Weights, moments and gradients over many powers of two, every code, and special values."""
    generator = torch.Generator().manual_seed(7)

    def whole(low: int, high: int, count: int = NUM) -> torch.Tensor:
        return torch.randint(low, high, (count,), generator=generator)

    def normal() -> torch.Tensor:
        return torch.randn(NUM, generator=generator) * whole(-30, 20).float().exp2()

    rested, coded = FORMATS[state_format]
    weights, grad, m, v = normal(), normal(), normal(), normal().square()
    for i, value in enumerate(SPECIAL):
        for j, other in enumerate(SPECIAL):
            k = 256 * i + j
            weights[k], grad[k], m[k], v[k] = value, other, other, abs(value)
    grad[256 * 50 : 256 * 52] = 0
    moments: tuple[Any, ...] = (m.bfloat16(), v.bfloat16())
    if coded:
        codes = [whole(0, 256).to(torch.uint8) for _ in range(2)]
        bases = [whole(0, 1700, NUM // 256).to(torch.int16) for _ in range(2)]
        codes[0][256 * 50 : 256 * 52] = codes[1][256 * 50 : 256 * 52] = 0
        moments = (*codes, *bases)
    rest = whole(-128, 128).to(torch.int8) if rested else None
    return MatrixViews("layers.3", weights.bfloat16(), rest, *moments), grad


def _on(state: MatrixViews, device: str) -> MatrixViews:
    moved = {
        field.name: getattr(state, field.name).to(device, copy=True)
        for field in fields(state)
        if isinstance(getattr(state, field.name), torch.Tensor)
    }
    return replace(state, **moved)


def _update(state: MatrixViews, grad: torch.Tensor, scalars: AdamScalars, twin: bool) -> None:
    factor = torch.tensor(0.37, device=grad.device)
    if twin:
        adamw_matrices_torch(state, grad, factor, scalars)
        return
    # The vectors behind the matrices have a kernel of their own.
    device = grad.device
    vectors = StateViews(
        torch.zeros(256, dtype=torch.bfloat16, device=device),
        torch.zeros(256, dtype=torch.int16, device=device),
        torch.zeros(256, device=device),
        torch.zeros(256, device=device),
    )
    whole = torch.cat([grad, torch.zeros(256, dtype=grad.dtype, device=device)])
    adamw_update(LayerViews(state.hi, state, vectors), whole, factor, scalars)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("state_format", FORMATS)
def test_three_updates_are_bit_equal_to_the_twins(state_format: str, dtype: torch.dtype) -> None:
    config = TrainConfig(model="m", dataset="d", weight_decay=0.1, seed=11)
    start, grad = _inputs(state_format)
    results = []
    for device, twin in (("cuda", False), ("cuda", True), ("cpu", True)):
        state = _on(start, device)
        for update in (17, 18, 19):
            scalars = AdamScalars.at(update, learning_rate=3e-4, config=config)
            _update(state, grad.to(device, dtype), scalars, twin)
        results.append(_on(state, "cpu"))
    for other in results[1:]:
        for field in fields(MatrixViews):
            one, two = getattr(results[0], field.name), getattr(other, field.name)
            if isinstance(one, torch.Tensor):
                different = (one.view(torch.uint8) != two.view(torch.uint8)).nonzero()
                assert different.numel() == 0, f"{field.name}: {len(different)}, {different[0]}"
