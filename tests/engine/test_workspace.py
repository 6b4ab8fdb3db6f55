"""What a run allocated goes with the run, at once: nothing waits for the garbage collector."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from datasets import write_dataset
from headrace.engine import (
    MemoryGone,
    TrainConfig,
    bench_step,
    layer_graph,
    read_model_spec,
    step_compute,
)
from headrace.engine.mover import Mover
from headrace.engine.step_compute import StepCompute
from headrace.engine.working import MIB
from headrace.engine.workspace import Workspace
from headrace.storage import Scratch
from runs import Run
from tiny import make_tiny_llama

_Weak: Any = StorageWeakRef  # without types


class Boom(RuntimeError):
    """Planted in a stage."""


def _boom(*arguments: Any) -> None:
    raise Boom


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The large tensors of every workspace, without keeping them; the collector is off."""
    found: list[Any] = []
    enter = Workspace.__enter__

    def look(work: Workspace) -> Workspace:
        slab = work.ring[0].device.tensor(torch.uint8, 1)
        kept = [slab, work.table, work.table_grad, work.layer_grad, work.norm_grad]
        if work.scratch_road is not None:
            kept += [one.room for one in work.scratch_road._down]
        found.extend(_Weak(one.untyped_storage()) for one in kept if one is not None)
        return enter(work)

    monkeypatch.setattr(Workspace, "__enter__", look)
    gc.collect()
    gc.disable()
    yield found
    gc.enable()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("inputs")
    model = make_tiny_llama(folder / "model", tied=False, seed=3)
    return model, write_dataset(folder / "data", [9, 17, 5], vocab=384)


def _bench(model: Any, **settings: Any) -> None:
    config = TrainConfig(
        model="random",
        dataset="random",
        batch_rows=2,
        microbatch_rows=1,
        state_tier="nvme",
        device_bytes=2**28,
        host_bytes=2**28,
        **settings,
    )
    bench_step(config, spec=read_model_spec(model), tokens_per_row=8, slots=(2,), num_steps=1)


def test_a_gpu_without_room_for_the_state_says_so_too(
    monkeypatch: pytest.MonkeyPatch, inputs: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 * MIB, 8000 * MIB))

    def no_slab(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("Tried to allocate")

    monkeypatch.setattr("headrace.engine.workspace.DeviceSlab", no_slab)
    with pytest.raises(MemoryGone, match="has 20 MiB of its 8000 left"):
        _bench(inputs[0])


def test_what_is_left_is_reserved_before_the_first_step_of_a_run_and_of_a_bench(
    monkeypatch: pytest.MonkeyPatch, inputs: Any, tmp_path: Any
) -> None:
    seen: list[str] = []
    run_visit = StepCompute.visit

    def visit(compute: StepCompute, *arguments: Any) -> Any:
        seen.append("step")
        return run_visit(compute, *arguments)

    monkeypatch.setattr(StepCompute, "visit", visit)
    for module in ("mover", "bench_inputs"):
        name = f"headrace.engine.{module}.reserve"
        monkeypatch.setattr(name, lambda plan, device, said=module: seen.append(said))
    Run(tmp_path, *inputs, max_steps=1, batch_rows=3).go()
    assert seen[:2] == ["mover", "step"] and "bench_inputs" not in seen
    seen.clear()
    _bench(inputs[0])
    assert seen[:2] == ["bench_inputs", "step"] and "mover" not in seen


def test_gradients_of_a_microbatch_are_gone_before_the_next_has_its_own(
    monkeypatch: pytest.MonkeyPatch, inputs: Any
) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def watched(*arguments: Any) -> Any:
        alive.append(sum(one() is not None for one in made))
        of_inputs, grads = layer_graph.backward(*arguments)
        made.extend(weakref.ref(grad) for grad in grads.values())
        return of_inputs, grads

    monkeypatch.setattr(step_compute, "backward", watched)
    _bench(inputs[0])
    assert len(alive) > 4
    assert max(alive) == 0


def _is_free(held: list[Any]) -> bool:
    assert held
    return all(one.expired() for one in held)


@pytest.mark.parametrize("waits", ["device", "nvme"])
def test_memory_is_free_after_steps(held: list[Any], inputs: Any, waits: Any) -> None:
    _bench(inputs[0], activation_tier=waits)
    assert _is_free(held)


def test_memory_is_free_after_a_run(held: list[Any], inputs: Any, tmp_path: Any) -> None:
    Run(tmp_path, *inputs, max_steps=2, batch_rows=3).go()
    assert _is_free(held)


@pytest.mark.parametrize(
    ("where", "stage"),
    [(Mover, "read"), (Mover, "release"), (StepCompute, "visit"), (Scratch, "read")],
)
def test_memory_is_free_after_a_step_that_failed(
    held: list[Any],
    inputs: Any,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    stage: str,
) -> None:
    monkeypatch.setattr(where, stage, _boom)
    with suppress(Boom):  # pytest.raises would keep the error, and with it every frame
        _bench(inputs[0], activation_tier="nvme")
    assert _is_free(held)
