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
    DeviceSlab,
    DeviceSlot,
    Fence,
    HostArena,
    HostSlot,
    RecordSpec,
    TensorStore,
    Transfer,
)

from .config import TrainConfig
from .layer import LayerModule
from .model import ModelSpec, RecordLayout
from .plan import Plan
from .sizes import Tier, kept_grad_bytes
from .state import RecordViews, state_record, state_views


@dataclass(slots=True)
class RingSlot:
    """A staging slot on the host with its twin on the device, and the events that order them."""

    host: HostSlot
    device: DeviceSlot
    ready: Fence | None = field(default=None)  # the copy up has ended
    done: Fence | None = field(default=None)  # compute has let go of the slot


class Workspace:
    """The run's memory and collaborators; a context manager that frees what it allocated.

    `residents` hold the state of records that live on the device, `homes` of those that live in
    host memory; `resident_grads` and `grad_homes` their final gradients that wait for an update.
    `table` is the embedding (or, while it is its turn, an untied head) in
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
            layout.name: state_record(layout, config.state_format) for layout in spec.records
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
        parts = ("slots", "state", "gradients")
        slab = DeviceSlab(sum(plan.device_bytes[part] for part in parts), self.device)
        self.ring = [
            RingSlot(
                self.arena.carve(plan.slot_bytes),
                slab.carve(plan.device_bytes["slots"] // plan.num_slots),
            )
            for _ in range(plan.num_slots)
        ]
        tiers = dict(zip((layout.name for layout in spec.records), plan.tiers, strict=True))
        self.residents: Mapping[str, DeviceSlot] = {
            layout.name: slab.carve(self.records[layout.name].padded_bytes)
            for layout in spec.records
            if tiers[layout.name] == "device"
        }
        self.resident_grads: Mapping[str, DeviceSlot] = {
            name: slab.carve(size) for name, size in self._kept_grads(tiers, on_device=True)
        }
        for grads in self.resident_grads.values():
            grads.tensor(torch.uint8, grads.nbytes).zero_()  # gaps between parameters stay zero
        self.homes: Mapping[str, HostSlot] = {
            layout.name: self.arena.carve(self.records[layout.name].padded_bytes)
            for layout in spec.records
            if tiers[layout.name] == "host"
        }
        self.grad_homes: Mapping[str, HostSlot] = {
            name: self.arena.carve(size) for name, size in self._kept_grads(tiers, on_device=False)
        }
        parked = plan.host_bytes["boundary_activations"]
        self.activation_slot = self.arena.carve(parked) if parked else None
        self.module = LayerModule(
            spec, device=self.device, dtype=self.dtype, compile=self.config.compile
        )
        layer = max(layout.num_elements for layout in spec.of_kind("layer"))
        shape = (spec.vocab_size, spec.hidden_size)
        self.table = self._empty(shape, self.dtype)
        self.table_grad = self._empty(shape, torch.float32)
        self.layer_grad = self._empty((layer,), torch.float32)
        self.norm_grad = self._empty((spec.of_kind("norm")[0].num_elements,), torch.float32)
        fp32 = self.dtype == torch.float32
        self.layer_weights = self._empty((layer,), torch.float32) if fp32 else None

    def _kept_grads(self, tiers: Mapping[str, Tier], *, on_device: bool) -> list[tuple[str, int]]:
        """Names and bytes of the gradients that are kept on the device, or in host memory."""
        if not self.plan.keep_grads:
            return []
        return [
            (layout.name, size)
            for layout in self.spec.records
            if (tiers[layout.name] == "device") == on_device
            and (size := kept_grad_bytes(self.config, layout))
        ]

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def state(self, layout: RecordLayout, slot: RingSlot) -> RecordViews:
        """A record's components: at home on the device, or where the reader has put them."""
        place = self.residents.get(layout.name, slot.device)
        return state_views(place, self.records[layout.name])

    @staticmethod
    def table_rows(layout: RecordLayout, table: Tensor) -> Tensor:
        """The rows of `table` or its gradient that a piece holds, (rows, hidden)."""
        (param,) = layout.params
        return table[param.row_start : param.row_start + param.shape[0]]

    def close(self) -> None:
        """Free the arena; views of it must not be used any more."""
        self.ring = []
        self.homes = {}
        self.grad_homes = {}
        self.residents = {}
        self.resident_grads = {}
        self.activation_slot = None
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
