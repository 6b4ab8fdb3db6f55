"""All the memory of a run, allocated once: ring slots, tables, gradient and state homes.

Sizes come from the plan. The store's staging lies in one host arena, pinned when a GPU is used;
the device's buffers in one slab.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from headrace.storage import (
    PAGE_BYTES,
    DeviceSlab,
    DeviceSlot,
    Fence,
    HostArena,
    HostSlot,
    RecordSpec,
    TensorStore,
    Transfer,
    round_up,
)

from .config import TrainConfig
from .layer import LayerModule
from .model import ModelSpec
from .plan import STATE_BYTES_PER_ELEMENT, Plan, kept_grad_bytes
from .state import state_record


@dataclass(slots=True)
class RingSlot:
    """A staging slot on the host with its twin on the device, and the events that order them."""

    host: HostSlot
    device: DeviceSlot
    ready: Fence | None = field(default=None)  # the copy up has ended
    done: Fence | None = field(default=None)  # compute has let go of the slot


class Workspace:
    """The run's memory and collaborators; a context manager that frees what it allocated.

    `homes` hold the state of records that live in host memory, `grad_homes` final gradients that
    wait for their update. `table` is the embedding (or, while it is its turn, an untied head) in
    the compute dtype, `table_grad` its fp32 gradient, both (vocabulary, hidden). `layer_weights`
    (fp32 compute only) and `layer_grad` are flat, of the largest layer's length.
    """

    def __init__(
        self, spec: ModelSpec, config: TrainConfig, plan: Plan, store: TensorStore
    ) -> None:
        self.spec = spec
        self.config = config
        self.plan = plan
        self.store = store
        self.device = torch.device(config.device)
        self.dtype: torch.dtype = getattr(torch, config.compute_dtype)
        self.records: dict[str, RecordSpec] = {
            layout.name: state_record(layout) for layout in spec.records
        }
        self._stack = ExitStack()
        try:
            self._allocate()
        except BaseException:
            self._stack.close()
            raise

    def _allocate(self) -> None:
        plan, spec = self.plan, self.spec
        self.transfer = self._stack.enter_context(Transfer(self.device))
        self.arena = self._stack.enter_context(
            HostArena(plan.total_host_bytes, pin=self.device.type == "cuda")
        )
        slab = DeviceSlab(plan.num_slots * plan.slot_bytes, self.device)
        self.ring = [
            RingSlot(self.arena.carve(plan.slot_bytes), slab.carve(plan.slot_bytes))
            for _ in range(plan.num_slots)
        ]
        self.homes: Mapping[str, HostSlot] = {
            layout.name: self.arena.carve(
                round_up(STATE_BYTES_PER_ELEMENT * layout.num_elements, PAGE_BYTES)
            )
            for layout, tier in zip(spec.records, plan.tiers, strict=True)
            if tier == "host"
        }
        self.grad_homes: Mapping[str, HostSlot] = {
            layout.name: self.arena.carve(size)
            for layout in spec.records
            if plan.keep_grads and (size := kept_grad_bytes(self.config, layout))
        }
        parked = plan.host_bytes["boundary_activations"]
        self.activation_slot = self.arena.carve(parked) if parked else None
        self.module = LayerModule(spec, device=self.device, dtype=self.dtype)
        layer = max(layout.num_elements for layout in spec.of_kind("layer"))
        shape = (spec.vocab_size, spec.hidden_size)
        self.table = self._empty(shape, self.dtype)
        self.table_grad = self._empty(shape, torch.float32)
        self.layer_grad = self._empty((layer,), torch.float32)
        self.norm_grad = self._empty((spec.of_kind("norm")[0].num_elements,), torch.float32)
        fp32 = self.dtype == torch.float32
        self.layer_weights = self._empty((layer,), torch.float32) if fp32 else None

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def close(self) -> None:
        """Free the arena; views of it must not be used any more."""
        self.ring = []
        self.homes = {}
        self.grad_homes = {}
        self.activation_slot = None
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
