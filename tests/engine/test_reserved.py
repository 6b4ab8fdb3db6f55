"""What is planned of a GPU is reserved before the first step, or the run says what is missing."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headrace.engine import MemoryGone, TrainConfig, shape_spec
from headrace.engine.reserved import reserve
from headrace.engine.working import MIB, SMALL_BLOCKS_BYTES


class ShortGpu:
    """What torch tells of a GPU with so many MiB left, and the blocks asked of it, in bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, free: int, reserved: int) -> None:
        self.asked: list[int] = []
        self.calls: list[str] = []
        self._free = free * MIB
        told = {
            "memory_reserved": lambda device: reserved * MIB,
            "mem_get_info": lambda device: (self._free, 8000 * MIB),
            "empty_cache": lambda: self.calls.append("empty_cache"),
            "reset_peak_memory_stats": lambda device: self.calls.append("reset peaks"),
        }
        for name, call in told.items():
            monkeypatch.setattr(torch.cuda, name, call)
        monkeypatch.setattr(torch, "empty", self.empty)

    def empty(self, shape: tuple[int], *, dtype: torch.dtype, device: torch.device) -> None:
        """Stands for `torch.empty` there."""
        self.asked.append(shape[0])
        self.calls.append("block")
        if shape[0] > self._free:
            raise torch.OutOfMemoryError("Tried to allocate")

    def reserve(self, *, planned: int, tokens: int = 4096) -> None:
        """For a plan of so many MiB on the device beside what CUDA takes for itself, 600 of them
        of layers of a small model, for microbatches of so many tokens."""
        names = ("kept_activations", "layer_activations", "boundary_activations")
        parts = {"runtime": 1024 * MIB} | dict.fromkeys(names, 200 * MIB)
        config = TrainConfig(model="m", dataset="d", compute_dtype="bfloat16")
        spec = shape_spec("smollm2-135m", 2)
        sizes = SimpleNamespace(
            spec=spec,
            config=config,
            microbatch_tokens=tokens,
            layer_grad_elements=10 * MIB,
            compute_bytes=2,
        )
        plan: Any = SimpleNamespace(
            total_device_bytes=(planned + 1024) * MIB,
            device_bytes=parts,
            basis=SimpleNamespace(sizes=sizes),
        )
        reserve(plan, torch.device("cuda"))


def test_what_else_is_planned_of_a_gpu_is_reserved_in_one_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = ShortGpu(monkeypatch, free=5000, reserved=1000)
    gpu.reserve(planned=4000)
    assert gpu.asked == [3000 * MIB - SMALL_BLOCKS_BYTES]
    assert gpu.calls == ["empty_cache", "block", "reset peaks"]
    gpu.reserve(planned=1050)  # the rest is for small blocks
    assert len(gpu.asked) == 1


@pytest.mark.parametrize(("tokens", "small"), [(4096, 0), (2048, 87), (256, 580)])
def test_what_comes_in_small_tensors_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tokens: int, small: int
) -> None:
    # Torch takes them from pages of their own: 360 MiB of kept layers once came on top of the plan.
    # Gradients of weights, 20 MiB here, are no smaller for fewer tokens.
    gpu = ShortGpu(monkeypatch, free=5000, reserved=1000)
    gpu.reserve(planned=4000, tokens=tokens)
    assert gpu.asked == [(3000 - small) * MIB - SMALL_BLOCKS_BYTES]


def test_a_gpu_that_others_have_filled_since_the_plan_ends_the_run_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = "has 2000 MiB of its 8000 left, and the run needs 3000 MiB beside the 1000 that it holds"
    gpu = ShortGpu(monkeypatch, free=2000, reserved=1000)
    with pytest.raises(MemoryGone, match=f"{told}: .* or lower device_bytes"):
        gpu.reserve(planned=4000)


def test_memory_that_is_short_for_what_the_block_leaves_out_ends_the_run_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = ShortGpu(monkeypatch, free=2700, reserved=1000)
    with pytest.raises(MemoryGone, match="has 2700 MiB of its 8000 left"):
        gpu.reserve(planned=4000, tokens=256)
    assert gpu.asked == []
