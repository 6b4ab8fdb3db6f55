"""Updates in the background: in order, counted, and never half told."""

import threading
from typing import Any

import pytest
import torch

from headrace.engine import TrainConfig, adamw_numba
from headrace.engine.adamw import AdamScalars, adamw_torch
from headrace.engine.host_optimizer import HostOptimizer, measure_cpu_optimizer
from headrace.engine.state import StateViews, split_master
from headrace.storage import Fence

CONFIG = TrainConfig(model="m", dataset="d", learning_rate=1e-3)
NUM = 2**17 + 64


def _scalars(update: int) -> AdamScalars:
    return AdamScalars.at(update, learning_rate=1e-3, config=CONFIG)


def _state(seed: int) -> StateViews:
    state = StateViews(
        torch.empty(NUM, dtype=torch.bfloat16),
        torch.empty(NUM, dtype=torch.int16),
        torch.zeros(NUM),
        torch.zeros(NUM),
    )
    split_master(
        torch.randn(NUM, generator=torch.Generator().manual_seed(seed)), state.hi, state.lo
    )
    return state


class Gate(Fence):
    """A copy that ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()

    def wait(self) -> None:
        assert self.opened.wait(10)


def test_updates_of_a_record_are_made_in_the_order_they_were_asked() -> None:
    state, wanted = _state(1), _state(1)
    grads = [torch.randn(NUM).bfloat16() for _ in range(4)]
    with HostOptimizer(num_threads=2) as optimizer:
        for i, grad in enumerate(grads, 1):
            last = optimizer.submit(state, grad, 0.5, _scalars(i))
        last.result()
    for i, grad in enumerate(grads, 1):
        adamw_torch(wanted, grad, torch.tensor(0.5), _scalars(i))
    assert torch.equal(state.exp_avg_sq, wanted.exp_avg_sq)
    assert torch.equal(state.lo, wanted.lo)


def test_an_update_waits_for_the_copy_of_its_gradient() -> None:
    state, gate = _state(2), Gate()
    with HostOptimizer(num_threads=1) as optimizer:
        done = optimizer.submit(state, torch.ones(NUM), 1.0, _scalars(1), after=gate)
        assert not done.done() and not state.exp_avg.any()
        gate.opened.set()
        done.result(timeout=10)
    assert state.exp_avg.all()


def test_the_counters_hold_what_was_updated() -> None:
    state = _state(3)
    with HostOptimizer(num_threads=1) as optimizer:
        for i, dtype in enumerate((torch.bfloat16, torch.float32), 1):
            optimizer.submit(state, torch.ones(NUM, dtype=dtype), 1.0, _scalars(i)).result()
        stats = optimizer.stats
    assert (stats.num_updates, stats.num_elements) == (2, 2 * NUM)
    assert stats.traffic_bytes == (26 + 28) * NUM
    assert stats.busy_seconds > 0


def test_a_failed_copy_is_told_and_what_comes_later_is_done() -> None:
    class Broken(Fence):
        def wait(self) -> None:
            raise RuntimeError("the copy failed")

    state = _state(4)
    with HostOptimizer(num_threads=1) as optimizer:
        lost = optimizer.submit(state, torch.ones(NUM), 1.0, _scalars(1), after=Broken())
        kept = optimizer.submit(state, torch.ones(NUM), 1.0, _scalars(1))
        with pytest.raises(RuntimeError, match="the copy failed"):
            lost.result()
        kept.result()
        assert optimizer.stats.num_updates == 1
    wanted = _state(4)
    adamw_torch(wanted, torch.ones(NUM), torch.tensor(1.0), _scalars(1))
    assert torch.equal(state.exp_avg, wanted.exp_avg)


def test_a_record_costs_a_handful_of_python_calls_however_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    fused = adamw_numba.exact_kernel(False)

    def counted(*arguments: Any) -> None:
        calls.append(1)
        fused(*arguments)

    monkeypatch.setattr(adamw_numba, "exact_kernel", lambda bf16_grad: counted)
    num = 2**22
    moments = torch.zeros(3, num)
    halves = moments[2].view(torch.bfloat16).view(2, num)
    state = StateViews(halves[0], halves[1].view(torch.int16), moments[0], moments[1])
    with HostOptimizer(num_threads=2) as optimizer:
        optimizer.submit(state, torch.ones(num), 1.0, _scalars(1)).result()
    assert 2 <= len(calls) <= 8


def test_the_measured_rate_is_a_rate() -> None:
    assert 1e6 < measure_cpu_optimizer(0.05, num_elements=2**20) < 1e12
