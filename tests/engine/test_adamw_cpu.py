"""The CPU's update gives the twin's bits, fused or in chunks, however the threads share it."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import pytest
import torch

import headrace.engine.adamw_cpu as adamw_cpu
from compact_inputs import FORMATS, assert_same_matrices, compact_inputs, moved_to
from headrace.engine import TrainConfig
from headrace.engine.adamw import AdamScalars, adamw_torch
from headrace.engine.adamw_compact import adamw_matrices_torch
from headrace.engine.adamw_numba import exact_kernel
from headrace.engine.compact_numba import compact_kernel
from headrace.engine.config import StateFormat
from headrace.engine.ranges import RangePool
from headrace.engine.state import StateViews, join_master, split_master

Update = Callable[[StateViews, torch.Tensor, float, AdamScalars], None]

CONFIG = TrainConfig(model="m", dataset="d", learning_rate=3e-4, weight_decay=0.1)
SCALARS = AdamScalars.at(17, learning_rate=3e-4, config=CONFIG)
NUM = 2**18 + 4096 + 37  # the last range is short, and no multiple of a vector
INF, NAN = float("inf"), float("nan")
SPECIAL = [0.0, -0.0, 1e-45, -1e-38, 1e-30, 3e38, -3e38, 1.0, 65504.0, 1e-8, 1 / 3, INF, -INF, NAN]


def _inputs(dtype: torch.dtype) -> tuple[StateViews, torch.Tensor]:
    """Random state over 2^50 of scale; its first elements are all triples of special values."""
    generator = torch.Generator().manual_seed(7)
    exponents = torch.randint(-30, 20, (NUM,), generator=generator).float().exp2()
    master, grad, m = (torch.randn(NUM, generator=generator) * exponents for _ in range(3))
    v = torch.rand(NUM, generator=generator) * exponents**2
    triples = torch.tensor(list(itertools.product(SPECIAL, repeat=3)))
    count = len(triples)
    master[:count], grad[:count], m[:count] = triples.T
    v[:count] = triples[:, 2].abs()
    # Masters half way between two bf16 values, where hi is rounded: up, and up over a carry.
    master[count : count + 3] = torch.tensor([0x3F808000, 0x3FFF8000, -0x40808000],
                                             dtype=torch.int32).view(torch.float32)  # fmt: skip
    state = StateViews(
        torch.empty(NUM, dtype=torch.bfloat16), torch.empty(NUM, dtype=torch.int16), m, v
    )
    split_master(master, state.hi, state.lo)
    return state, grad.to(dtype)


def _bits(state: StateViews) -> list[torch.Tensor]:
    """Bits of master and moments. All NaNs are one: IEEE 754 leaves their sign and payload open,
    and with two of them in a sum even the twin's depend on where its chunks end."""
    master = torch.empty(NUM)
    join_master(state.hi, state.lo, master)
    values = (master, state.exp_avg, state.exp_avg_sq)
    return [value.where(~value.isnan(), torch.tensor(NAN)).view(torch.int32) for value in values]


def _assert_twin(update: Update, dtype: torch.dtype) -> None:
    """`update` leaves the bits that the twin leaves."""
    state, grad = _inputs(dtype)
    wanted, _ = _inputs(dtype)
    update(state, grad, 0.37, SCALARS)
    adamw_torch(wanted, grad, torch.tensor(0.37), SCALARS)
    for one, two in zip(_bits(state), _bits(wanted), strict=True):
        different = (one != two).nonzero()
        assert different.numel() == 0, f"{len(different)} differ, first at {different[0]}"


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["fused", "chunked"])
def test_every_form_has_the_twins_bits_for_any_input(
    form: str, dtype: torch.dtype, num_threads: int
) -> None:
    update = {"fused": adamw_cpu.adamw_fused, "chunked": adamw_cpu.adamw_chunked}[form]
    pool = RangePool(num_threads, "test")
    try:
        _assert_twin(partial(update, pool), dtype)
    finally:
        pool.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["fused", "chunked"])
def test_an_update_into_a_second_version_has_the_same_bits_and_leaves_the_first(
    form: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form == "chunked":
        monkeypatch.setattr(adamw_cpu, "fused", None)
    source, grad = _inputs(dtype)
    before = [one.clone() for one in _bits(source)]
    target, _ = _inputs(dtype)
    for one in (target.hi, target.lo, target.exp_avg, target.exp_avg_sq):
        one.fill_(7)

    def update(state: StateViews, *rest: Any) -> None:
        adamw_cpu.adamw_cpu(target, *rest, source=source)
        for one, two in zip(_bits(source), before, strict=True):
            assert torch.equal(one, two)
        for field in ("hi", "lo", "exp_avg", "exp_avg_sq"):
            getattr(state, field).copy_(getattr(target, field))

    _assert_twin(update, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("state_format", FORMATS)
def test_compact_formats_have_the_twins_bits_in_every_form(
    state_format: str, dtype: torch.dtype
) -> None:
    start, grad = compact_inputs(state_format, 2**17 + 256 * 3)
    grad = grad.to(dtype)
    updates = [adamw_cpu.compact_fused, adamw_cpu.compact_chunked]
    pool = RangePool(3, "test")
    wanted, *others = (moved_to(start, "cpu") for _ in range(3))
    for number in (17, 18, 19):
        scalars = AdamScalars.at(number, learning_rate=3e-4, config=CONFIG)
        adamw_matrices_torch(wanted, grad, torch.tensor(0.37), scalars)
        for update, state in zip(updates, others, strict=True):
            update(pool, state, grad, 0.37, scalars)
    pool.close()
    for state in others:
        assert_same_matrices(state, wanted)


def test_without_numba_the_update_is_chunked_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adamw_cpu, "fused", None)
    monkeypatch.setattr(adamw_cpu, "_missing", "No module named 'numba'")
    kernel = adamw_cpu.cpu_kernel()
    assert kernel.form == "chunked" and "No module named 'numba'" in kernel.why
    _assert_twin(adamw_cpu.adamw_cpu, torch.float32)


def test_nothing_of_a_compact_format_is_compiled_in_a_step() -> None:
    for state_format in get_args(StateFormat):
        adamw_cpu.compile_update(state_format, torch.float32)
    compiled = compact_kernel.cache_info().misses
    for state_format in FORMATS:
        state, grad = compact_inputs(state_format, 2**14)
        adamw_cpu.compact_fused(RangePool(1, "test"), state, grad, 1.0, SCALARS)
    assert compact_kernel.cache_info().misses == compiled


def test_nothing_is_compiled_in_a_step() -> None:
    """A kernel is machine code once it was asked for, before the first step."""
    assert adamw_cpu.cpu_kernel().form == "fused"
    for dtype in (torch.float32, torch.bfloat16):
        adamw_cpu.compile_update("exact", dtype)
        made = exact_kernel.cache_info().misses
        kernel: Any = exact_kernel(dtype == torch.bfloat16)
        assert exact_kernel.cache_info().misses == made
        compiled = list(kernel.signatures)
        state, grad = _inputs(dtype)
        adamw_cpu.adamw_cpu(state, grad, 1.0, SCALARS)
        assert len(compiled) == 1 and kernel.signatures == compiled
