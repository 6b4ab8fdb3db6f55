"""All the memory of a run, allocated once: ring slots, tables, gradient and state homes.

Sizes come from the plan. What lies on the host is in one arena, pinned when a GPU is used; the
device's buffers in one slab. Memory that copies touch is never allocated during a step: a copy
is ordered by events alone, and what it touches must not be given to others meanwhile.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

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

from .adamw_cpu import compile_update
from .config import TrainConfig
from .grad_buffers import GradBuffer, GradBuffers
from .heap import trim_heap
from .homes import keeps_grad_on_device, versions_at_home
from .host_home import HostHome
from .layer import LayerModule
from .model import ModelSpec, RecordLayout
from .parked import NUM_ACTIVATION_BUFFERS, NUM_PINNED_BUFFERS
from .plan import Plan
from .reserved import told_when_short
from .scratch_activations import ScratchRoad
from .sizes import NUM_GRAD_BUFFERS, kept_grad_bytes, sum_bytes
from .staging import StagingPool
from .state import (
    FrozenViews,
    RecordViews,
    frozen_views,
    state_record,
    state_views,
    weight_names,
)
from .state_record import cached_weight_bytes
from .weight_cache import CachedWeights


class Closes(Protocol):
    """What can be closed."""

    def close(self) -> None:
        """Let go of what is held."""


C = TypeVar("C", bound=Closes)


@dataclass(slots=True, eq=False)
class RingSlot:
    """A slot on the device, which a record passes through, and the points that order its use."""

    device: DeviceSlot
    ready: Fence = field(default_factory=Fence)  # the copy up has ended
    done: Fence = field(default_factory=Fence)  # compute has let go of the slot
    free: Fence = field(default_factory=Fence)  # the slot may be written again


class Workspace:
    """The run's memory and collaborators; a context manager that frees what it allocated.

    MemoryGone where a GPU has not what is planned of it.

    `residents` hold the state of records that live on the device, `homes` of those that live in
    host memory; `cached` the weights of those whose other state lives elsewhere; `resident_grads`
    and `grad_homes` final gradients that wait for an update, on the device and in host memory;
    `grad_buffers`, used in turn, is where the latter are made and read. `gradient_sums` hold the
    layers' sums in host memory where microbatches come one after the other.
    `table` is the embedding (or, while it is its turn, an untied head) in the compute dtype,
    `table_grad` its fp32 gradient where it is trained, both (vocabulary, hidden). `layer_weights`
    is as long as the largest layer where weights are converted to be computed with, else empty;
    `layer_grad` (fp32) as the largest sum of a layer's gradients.
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
            with told_when_short(plan, self.device):
                self._allocate()
        except BaseException:
            self._stack.close()
            raise

    def _allocate(self) -> None:
        plan, spec = self.plan, self.spec
        self.arena = self._stack.enter_context(
            HostArena(plan.total_host_bytes, pin=self.device.type == "cuda")
        )
        self.transfer = self._stack.enter_context(Transfer(self.device))
        parts = ("slots", "grad_buffers", "state", "frozen", "cached_weights", "gradients")
        slab = DeviceSlab(sum(plan.device_bytes[part] for part in parts), self.device)
        self.staging = StagingPool(
            [self.arena.carve(plan.slot_bytes) for _ in range(plan.num_staging)]
        )
        self.ring = [
            RingSlot(slab.carve(plan.device_bytes["slots"] // plan.num_slots))
            for _ in range(plan.num_slots)
        ]
        tiers = dict(zip((layout.name for layout in spec.records), plan.tiers, strict=True))
        self.residents: Mapping[str, DeviceSlot] = {
            layout.name: slab.carve(self.records[layout.name].padded_bytes)
            for layout in spec.records
            if tiers[layout.name] == "device"
        }
        self.cached: Mapping[str, CachedWeights] = {
            layout.name: self._cache(self.records[layout.name], slab)
            for i, layout in enumerate(spec.records)
            if i in plan.cached
        }
        self.homes: Mapping[str, HostHome] = {
            layout.name: HostHome(
                [
                    self.arena.carve(self.records[layout.name].padded_bytes)
                    for _ in range(versions_at_home(i, plan.host_versions, plan.frozen))
                ]
            )
            for i, layout in enumerate(spec.records)
            if tiers[layout.name] == "host"
        }
        self._allocate_gradients(slab)
        if self.device.type == "cpu" or plan.on_host:
            aside = plan.host_versions > 1
            compile_update(self.config.state_format, self.dtype, aside=aside)
        parked = plan.host_bytes["boundary_activations"]
        self.activation_slot = self.arena.carve(parked) if parked else None
        self.scratch_road = self._open_scratch() if plan.scratch_bytes else None
        self.module = LayerModule(
            spec, device=self.device, dtype=self.dtype, compile=self.config.compile
        )
        shape = (spec.vocab_size, spec.hidden_size)
        self.table = self._empty(shape, self.dtype)
        self.table_grad: Tensor | None = None
        if spec.trains_table:
            self.table_grad = self._empty(shape, torch.float32)
        self.layer_grad = self._empty((plan.device_bytes["layer_grad"] // 4,), torch.float32)
        self.norm_grad = self._empty((spec.of_kind("norm")[0].num_elements,), torch.float32)
        converted = plan.device_bytes["layer_weights"] // self.dtype.itemsize
        self.layer_weights = self._empty((converted,), self.dtype)

    def _open_scratch(self) -> ScratchRoad:
        """The way to NVMe of layer inputs. NoSpace where the volumes have too little."""
        plan, sizes = self.plan, self.plan.basis.sizes
        scratch = self._stack.enter_context(self.store.open_scratch(plan.scratch_bytes))
        room = (sizes.microbatch_hidden_bytes // self.dtype.itemsize,)
        pinned = plan.host_bytes["activation_ring"] // NUM_PINNED_BUFFERS
        road = ScratchRoad(
            scratch,
            transfer=self.transfer,
            rooms=[self._empty(room, self.dtype) for _ in range(NUM_ACTIVATION_BUFFERS)],
            ring=[self.arena.carve(pinned) for _ in range(NUM_PINNED_BUFFERS)],
        )
        return self.closing(road)

    def _allocate_gradients(self, slab: DeviceSlab) -> None:
        """Where gradients pass through, and wait."""
        plan, spec = self.plan, self.spec
        count = NUM_GRAD_BUFFERS[self.config.device]
        room = plan.device_bytes["grad_buffers"] // count
        self.grad_buffers = GradBuffers(
            [GradBuffer(slab.carve(room)) for _ in range(count)], self.transfer.fence
        )
        self.grad_landed: dict[str, Fence] = {}  # kept gradients on their way to the host
        self.resident_grads: Mapping[str, DeviceSlot] = {
            name: slab.carve(size) for name, size in self._kept_grads(on_device=True)
        }
        for grads in self.resident_grads.values():
            grads.tensor(torch.uint8, grads.nbytes).zero_()  # gaps between parameters stay zero
        self.grad_homes: Mapping[str, HostSlot] = {
            name: self.arena.carve(size) for name, size in self._kept_grads(on_device=False)
        }
        self.gradient_sums: Mapping[str, HostSlot] = {
            layout.name: self.arena.carve(sum_bytes(layout))
            for layout in spec.of_kind("layer")
            if plan.order == "microbatches"
        }

    def _cache(self, record: RecordSpec, slab: DeviceSlab) -> CachedWeights:
        """Room on the device for the weights of a record that lives elsewhere."""
        dtype = self.config.compute_dtype
        device = slab.carve(cached_weight_bytes(record, dtype))
        return CachedWeights(record, weight_names(record, dtype), device)

    def _kept_grads(self, *, on_device: bool) -> list[tuple[str, int]]:
        """Names and bytes of the gradients that are kept on the device, or in host memory."""
        plan = self.plan
        if not plan.keep_grads:
            return []
        return [
            (layout.name, size)
            for i, layout in enumerate(self.spec.records)
            if keeps_grad_on_device(i, plan.tiers, plan.grad_tier, plan.on_host) == on_device
            and (size := kept_grad_bytes(self.config, layout))
        ]

    def closing(self, resource: C) -> C:
        """Close the resource with the workspace, before its memory goes."""
        self._stack.callback(resource.close)
        return resource

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def state(self, layout: RecordLayout, slot: RingSlot | None) -> RecordViews:
        """A record's components: at home on the device, or where the reader has put them."""
        return state_views(self._place(layout, slot), self.records[layout.name])

    def frozen(self, layout: RecordLayout, slot: RingSlot | None) -> FrozenViews:
        """A frozen record's weights, likewise."""
        return frozen_views(self._place(layout, slot), self.records[layout.name])

    def _place(self, layout: RecordLayout, slot: RingSlot | None) -> DeviceSlot:
        place = self.residents.get(layout.name)
        if place is not None:
            return place
        assert slot is not None
        return slot.device

    @staticmethod
    def table_rows(layout: RecordLayout, table: Tensor) -> Tensor:
        """The rows of `table` or its gradient that a piece holds, (rows, hidden)."""
        (param,) = layout.params
        return table[param.row_start : param.row_start + param.shape[0]]

    def close(self) -> None:
        """Free the memory; views of it must not be used any more."""
        self._stack.close()
        self.table = self.layer_grad = self.norm_grad = self.layer_weights = torch.empty(0)
        self.table_grad = None
        self.ring = []
        self.grad_buffers.drop()
        self.homes = {}
        self.grad_homes = {}
        self.gradient_sums = {}
        self.residents = {}
        self.cached = {}
        self.resident_grads = {}
        self.activation_slot = self.scratch_road = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # what comes next will ask for other sizes
        trim_heap()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
