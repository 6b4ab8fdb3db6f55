"""AdamW in compact formats: the stated operations, unbiased, the same however it is chunked."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from compact_inputs import assert_same_matrices
from headrace.engine import TrainConfig
from headrace.engine.adamw import AdamScalars
from headrace.engine.adamw_compact import adamw_matrices_torch
from headrace.engine.config import StateFormat
from headrace.engine.model import ParamSpec, RecordLayout
from headrace.engine.optimizer import adamw_update
from headrace.engine.state import (
    LayerViews,
    RecordViews,
    StateViews,
    read_weights,
    state_record,
    state_views,
    write_weights,
)

CONFIG = TrainConfig(model="m", dataset="d", weight_decay=0.1, seed=3)
ROWS, COLUMNS = 256, 128
MATRIX = ROWS * COLUMNS
NUM = MATRIX + 2048
ONE = torch.tensor(1.0)
FORMATS: tuple[StateFormat, ...] = ("q8", "sr_bf16", "sr_q8")


class Memory:
    """A slot in plain memory."""

    def __init__(self, num_bytes: int) -> None:
        self._bytes = torch.zeros(num_bytes, dtype=torch.uint8)

    def tensor(self, dtype: torch.dtype, num_elements: int, offset_bytes: int = 0) -> torch.Tensor:
        stop = offset_bytes + num_elements * dtype.itemsize
        return self._bytes[offset_bytes:stop].view(dtype)


def _param(name: str, shape: tuple[int, ...], offset: int) -> ParamSpec:
    return ParamSpec(name=name, shape=shape, offset=offset, full_shape=shape)


LAYOUT = RecordLayout(
    name="layers.5",
    kind="layer",
    params=(_param("w", (ROWS, COLUMNS), 0), _param("n", (100,), MATRIX)),
    num_elements=NUM,
)


def _state(state_format: StateFormat, weights: torch.Tensor) -> RecordViews:
    record = state_record(LAYOUT, state_format)
    state = state_views(Memory(record.padded_bytes), record)
    write_weights(state, weights)
    return state


def _weights(state: RecordViews) -> torch.Tensor:
    out = torch.empty(NUM)
    read_weights(state, out)
    return out


def _scalars(update: int, rate: float = 1e-4) -> AdamScalars:
    return AdamScalars.at(update, learning_rate=rate, config=CONFIG)


def _random_weights() -> torch.Tensor:
    torch.manual_seed(1)
    weights = torch.randn(NUM) * 0.02
    weights[MATRIX + 100 :] = 0
    return weights


def _gradient(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    grad = torch.randn(NUM, generator=generator)
    grad *= torch.randn(NUM, generator=torch.Generator().manual_seed(9)).exp()
    grad[MATRIX + 100 :] = 0
    return grad


@pytest.mark.parametrize("state_format", FORMATS)
def test_weights_that_are_bfloat16_pass_unchanged(state_format: StateFormat) -> None:
    weights = _random_weights().bfloat16().float()
    assert torch.equal(_weights(_state(state_format, weights)), weights)


def test_q8_holds_sixteen_bits_of_a_weight_rounded_to_nearest() -> None:
    weights = _random_weights()
    matrix, held = weights[:MATRIX], _weights(_state("q8", weights))[:MATRIX]
    assert ((held / matrix - 1).abs() <= 2**-16).all()
    assert not (held.view(torch.int32) & 0xFF).any()


@pytest.mark.parametrize("state_format", FORMATS)
def test_vectors_stay_exact(state_format: StateFormat) -> None:
    weights = _random_weights()
    exact, compact = _state("exact", weights), _state(state_format, weights)
    for update in range(1, 4):
        for state in (exact, compact):
            adamw_update(state, _gradient(update), torch.tensor(0.5), _scalars(update))
    assert isinstance(exact, StateViews) and isinstance(compact, LayerViews)
    assert torch.equal(_weights(exact)[MATRIX:], _weights(compact)[MATRIX:])
    for name in ("hi", "lo", "exp_avg", "exp_avg_sq"):
        assert torch.equal(getattr(exact, name)[MATRIX:], getattr(compact.vectors, name))


@pytest.mark.parametrize("state_format", FORMATS)
def test_updates_follow_the_exact_ones(state_format: StateFormat) -> None:
    """Thirty steps: the way gone agrees with that of the exact state, and none is far off."""
    weights = _random_weights().bfloat16().float()
    exact, compact = _state("exact", weights), _state(state_format, weights)
    for update in range(1, 31):
        for state in (exact, compact):
            adamw_update(state, _gradient(update % 5), ONE, _scalars(update))
    wanted, got = ((_weights(state) - weights)[:MATRIX] for state in (exact, compact))
    gain = float((wanted * got).sum() / (wanted * wanted).sum())
    assert gain == pytest.approx(1, abs=0.02)
    assert (got - wanted).norm() < 0.25 * wanted.norm()


@pytest.mark.parametrize("state_format", FORMATS)
def test_steps_far_below_a_weights_last_bit_add_up(state_format: StateFormat) -> None:
    """100 equal steps of 1e-6 on weights of 1, whose last bit is 2**-7 or 2**-15."""
    state = _state(state_format, torch.ones(NUM))
    config = replace(CONFIG, weight_decay=0.0)
    for update in range(1, 101):
        scalars = AdamScalars.at(update, learning_rate=1e-6, config=config)
        adamw_update(state, torch.ones(NUM), ONE, scalars)
    moved = 1 - _weights(state)[:MATRIX].double()
    scatter = 6 * (1e-4 * 2**-7 / MATRIX) ** 0.5
    assert abs(moved.mean() - 1e-4) < scatter + 1e-5


@pytest.mark.parametrize("state_format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chunks_do_not_change_a_bit(state_format: StateFormat, dtype: torch.dtype) -> None:
    weights = _random_weights()
    whole, pieces = _state(state_format, weights), _state(state_format, weights)
    assert isinstance(whole, LayerViews) and isinstance(pieces, LayerViews)
    for update in range(1, 4):
        grad = _gradient(update)[:MATRIX].to(dtype)
        for state, chunk in ((whole, MATRIX), (pieces, 256 * 3)):
            factor = torch.tensor(0.3)
            adamw_matrices_torch(state.matrices, grad, factor, _scalars(update), chunk=chunk)
    assert_same_matrices(whole.matrices, pieces.matrices)


@pytest.mark.parametrize("state_format", FORMATS)
def test_the_same_update_twice_rounds_the_same_and_another_does_not(
    state_format: StateFormat,
) -> None:
    states = [_state(state_format, _random_weights()) for _ in range(3)]
    for state, seed in zip(states, (3, 3, 4), strict=True):
        scalars = replace(_scalars(1), seed=seed)
        adamw_update(state, _gradient(0), ONE, scalars)
    one, again, other = (_weights(state) for state in states)
    assert torch.equal(one, again)
    assert (one != other).float().mean() > 0.2


@pytest.mark.parametrize("state_format", FORMATS)
def test_gaps_and_untouched_elements_stay_zero(state_format: StateFormat) -> None:
    state = _state(state_format, torch.zeros(NUM))
    grad = _gradient(0)
    grad[1000:2000] = 0
    for update in range(1, 4):
        adamw_update(state, grad, ONE, _scalars(update))
    assert isinstance(state, LayerViews)
    assert not _weights(state)[1000:2000].any() and not _weights(state)[MATRIX + 100 :].any()
    assert not state.matrices.exp_avg[1000:2000].any()
    assert not state.matrices.exp_avg_sq[1000:2000].any()


def test_a_weight_is_the_update_rounded_to_one_of_its_neighbours() -> None:
    """sr_bf16, against numpy's fp32 operations, which each round once."""
    weights = _random_weights().bfloat16().float()
    state = _state("sr_bf16", weights)
    s, f = _scalars(1), np.float32
    g = _gradient(0).numpy()[:MATRIX]
    p = weights.numpy()[:MATRIX] * f(s.decay)
    m = g * f(s.one_minus_beta1)
    v = (g * g) * f(s.one_minus_beta2)
    p = p - (m / (np.sqrt(v) * f(s.root_scale) + f(s.eps))) * f(s.step_size)
    adamw_update(state, _gradient(0), ONE, s)
    assert isinstance(state, LayerViews)
    held = (state.matrices.hi, state.matrices.exp_avg, state.matrices.exp_avg_sq)
    for got, wanted in zip(held, (p, m, v), strict=True):
        steps = got.view(torch.int16).int() - (torch.from_numpy(wanted).view(torch.int32) >> 16)
        assert set(steps.tolist()) == {0, 1}
