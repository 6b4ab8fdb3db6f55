"""Matrices in compact formats with values of every size, for tests of kernels against twins."""

from dataclasses import fields, replace
from typing import Any

import torch

from headrace.engine.state import MatrixViews

FORMATS = {"q8": (True, True), "sr_bf16": (False, False), "sr_q8": (False, True)}
SPECIAL = [0.0, -0.0, 1e-45, -1e-38, 3e38, -3e38, 1.0, 65504.0, 1e-8, 0.3333333]


def compact_inputs(state_format: str, num: int) -> tuple[MatrixViews, torch.Tensor]:
    """Weights, moments and gradients over many powers of two, every code, and special values."""
    generator = torch.Generator().manual_seed(7)

    def whole(low: int, high: int, count: int = num) -> torch.Tensor:
        return torch.randint(low, high, (count,), generator=generator)

    def normal() -> torch.Tensor:
        return torch.randn(num, generator=generator) * whole(-30, 20).float().exp2()

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
        bases = [whole(0, 1700, num // 256).to(torch.int16) for _ in range(2)]
        codes[0][256 * 50 : 256 * 52] = codes[1][256 * 50 : 256 * 52] = 0
        moments = (*codes, *bases)
    hi = weights.bfloat16()
    rest = None
    if rested:  # below a zero is a NaN, which has other bits on a GPU and which no update leaves
        rest = whole(-128, 128).to(torch.int8).where(hi != 0, torch.tensor(5, dtype=torch.int8))
    return MatrixViews("layers.3", hi, rest, *moments), grad


def moved_to(state: MatrixViews, device: str) -> MatrixViews:
    moved = {
        field.name: getattr(state, field.name).to(device, copy=True)
        for field in fields(state)
        if isinstance(getattr(state, field.name), torch.Tensor)
    }
    return replace(state, **moved)


def assert_same_matrices(one: MatrixViews, other: MatrixViews) -> None:
    """Every bit of every component is the same."""
    for field in fields(MatrixViews):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, torch.Tensor):
            different = (left.view(torch.uint8) != right.view(torch.uint8)).nonzero()
            assert different.numel() == 0, f"{field.name}: {len(different)}, {different[0]}"
