"""AdamW on the split state follows torch's AdamW, and does not depend on how it is chunked."""

import numpy as np
import torch

from headrace.engine import TrainConfig
from headrace.engine.optimizer import AdamScalars, adamw_torch, adamw_update
from headrace.engine.state import StateViews, join_master, split_master

CONFIG = TrainConfig(model="m", dataset="d", learning_rate=1e-3, weight_decay=0.1)
NUM = 5000


def _state(master: torch.Tensor) -> StateViews:
    views = StateViews(
        torch.empty(NUM, dtype=torch.bfloat16),
        torch.empty(NUM, dtype=torch.int16),
        torch.zeros(NUM),
        torch.zeros(NUM),
    )
    split_master(master, views.hi, views.lo)
    return views


def _master(views: StateViews) -> torch.Tensor:
    master = torch.empty(NUM)
    join_master(views.hi, views.lo, master)
    return master


def _run(master: torch.Tensor, grads: list[torch.Tensor], factor: float = 1.0) -> StateViews:
    views = _state(master)
    for step, grad in enumerate(grads, 1):
        scalars = AdamScalars.at(step, learning_rate=CONFIG.learning_rate, config=CONFIG)
        adamw_update(views, grad, torch.tensor(factor), scalars)
    return views


def test_ten_updates_agree_with_torch_adamw_in_float64() -> None:
    torch.manual_seed(0)
    master = torch.randn(NUM) * 0.02
    grads = [torch.randn(NUM) * 10 ** torch.randn(()) for _ in range(10)]
    expected = torch.nn.Parameter(master.double())
    reference = torch.optim.AdamW(
        [expected], lr=CONFIG.learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1
    )
    for grad in grads:
        expected.grad = grad.double()
        reference.step()
    updated = _master(_run(master, grads)).double()
    moved = (expected.detach() - master.double()).norm()
    assert (updated - expected.detach()).norm() < 1e-5 * moved


def test_chunks_do_not_change_a_bit() -> None:
    torch.manual_seed(1)
    master, grads = torch.randn(NUM), [torch.randn(NUM) for _ in range(3)]
    whole = _run(master, grads, 0.25)
    pieces = _state(master)
    for step, grad in enumerate(grads, 1):
        scalars = AdamScalars.at(step, learning_rate=CONFIG.learning_rate, config=CONFIG)
        adamw_torch(pieces, grad, torch.tensor(0.25), scalars, chunk=333)
    assert torch.equal(_master(whole), _master(pieces))
    assert torch.equal(whole.exp_avg_sq, pieces.exp_avg_sq)


def test_the_factor_scales_the_gradient_before_the_moments() -> None:
    torch.manual_seed(2)
    master, grad = torch.randn(NUM), torch.randn(NUM)
    scaled = _run(master, [grad], 0.5)
    assert torch.equal(scaled.exp_avg, _run(master, [grad * 0.5]).exp_avg)


def test_small_updates_are_not_lost_in_the_bfloat16_half() -> None:
    """100 equal steps at 1e-5 move the master by 1e-3; a bf16 weight near 1 would not move."""
    views = _state(torch.ones(NUM))
    config = TrainConfig(model="m", dataset="d", learning_rate=1e-5)
    for step in range(1, 101):
        scalars = AdamScalars.at(step, learning_rate=1e-5, config=config)
        adamw_update(views, torch.ones(NUM), torch.tensor(1.0), scalars)
    moved = 1 - _master(views)
    assert torch.allclose(moved, torch.full((NUM,), 1e-3), rtol=0.01)


def test_alignment_gaps_stay_zero() -> None:
    views = _run(torch.zeros(NUM), [torch.zeros(NUM)] * 3)
    for tensor in (_master(views), views.exp_avg, views.exp_avg_sq):
        assert not tensor.any()


def test_the_update_is_the_stated_list_of_ieee_operations() -> None:
    """Against numpy, whose fp32 operations each round once: the same bits in every component."""
    num = 2**18
    generator = torch.Generator().manual_seed(5)
    scale = torch.randint(-30, 20, (num,), generator=generator).float().exp2()
    master, grad, m = (torch.randn(num, generator=generator) * scale for _ in range(3))
    v = torch.rand(num, generator=generator) * scale**2
    views = StateViews(
        torch.empty(num, dtype=torch.bfloat16), torch.empty(num, dtype=torch.int16), m, v
    )
    split_master(master, views.hi, views.lo)
    s = AdamScalars.at(17, learning_rate=3e-4, config=CONFIG)
    f = np.float32
    g, p, m_old, v_old = (t.numpy().copy() for t in (grad, master, m, v))
    g = g * f(0.37)
    p = p * f(s.decay)
    m_new = m_old * f(s.beta1) + g * f(s.one_minus_beta1)
    v_new = v_old * f(s.beta2) + (g * g) * f(s.one_minus_beta2)
    p = p - (m_new / (np.sqrt(v_new) * f(s.root_scale) + f(s.eps))) * f(s.step_size)
    adamw_update(views, grad, torch.tensor(0.37), s)
    joined = torch.empty(num)
    join_master(views.hi, views.lo, joined)
    for actual, wanted in ((joined, p), (views.exp_avg, m_new), (views.exp_avg_sq, v_new)):
        different = int((actual.numpy().view(np.int32) != wanted.view(np.int32)).sum())
        assert different == 0
