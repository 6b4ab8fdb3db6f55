"""One optimizer step, layer-major: READ THIS FIRST.

Forward: every microbatch passes layer i before layer i + 1. Head: chunked loss with immediate
backward. Backward, last layer first: recompute, accumulate over the microbatches in fp32, and,
when the way is speculative, update while the layer is resident. Then the norm is known, in layer
order: what is left is updated, or a speculative update is made again with the right factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from .activations import Activations, DeviceActivations, HostActivations
from .clip import clip_factor, round_and_square
from .data import Microbatch
from .head import LossSums, Targets, head_backward, head_loss, targets_of
from .layer import Weights, backward, param_views, trainable
from .model import RecordLayout
from .mover import Mover
from .optimizer import AdamScalars, adamw_update
from .pipeline import VisitTimes, run_pass
from .plan import Visit, Way, redo_visits, step_visits
from .state import StateViews, join_master, state_views
from .workspace import RingSlot, Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What a step needs besides the state: scalars of the update and of clipping.

    `last_norm` is the previous step's gradient norm, for clip mode `lagged`.
    """

    microbatches: Sequence[Microbatch]
    scalars: AdamScalars
    way: Way
    last_norm: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What a step did. `skipped`: the gradient was not finite and nothing was changed."""

    loss_sum: float
    num_trained: int
    num_correct: int
    grad_norm: float
    clip_factor: float
    clipped: bool
    skipped: bool
    times: list[tuple[Visit, VisitTimes]]
    forward_seconds: float
    backward_seconds: float
    optimizer_seconds: float


def train_step(work: Workspace, mover: Mover, inputs: StepInputs) -> StepOutcome:
    """Run one step; the new state is in the store's working generation and the host homes.

    Writes of a step that is skipped are dropped. The caller commits.
    """
    started = perf_counter()
    compute = StepCompute(work, mover, inputs)
    mover.drop_writes = False
    plan = work.plan
    visits = step_visits(work.spec, plan.tiers, plan.keep_layers, inputs.way)
    times = run_pass(visits, work.ring, read=mover.read, compute=compute.visit, write=mover.write)
    timed = list(zip(visits, times, strict=True))
    settled = compute.settle()
    if inputs.way == "speculative":
        if settled.skipped:
            work.store.abort()
        elif work.config.clip_mode == "exact" and settled.clipped:
            again = redo_visits(work.spec, plan.tiers)
            redone = run_pass(
                again, work.ring, read=mover.read, compute=compute.visit, write=mover.write
            )
            timed += zip(again, redone, strict=True)
    ended = perf_counter()
    forward_end = max(t.finished for v, t in timed if v.phase == "forward")
    backward_end = max(t.finished for v, t in timed if v.phase == "backward")
    return StepOutcome(
        loss_sum=float(compute.sums.loss),
        num_trained=compute.sums.num_trained,
        num_correct=int(compute.sums.correct),
        grad_norm=settled.norm,
        clip_factor=settled.factor,
        clipped=settled.clipped,
        skipped=settled.skipped,
        times=timed,
        forward_seconds=forward_end - started,
        backward_seconds=backward_end - forward_end,
        optimizer_seconds=ended - backward_end,
    )


def evaluate_group(work: Workspace, mover: Mover, microbatches: Sequence[Microbatch]) -> LossSums:
    """Loss sums of some microbatches: one forward pass over the layers, nothing kept."""
    plan = work.plan
    compute = ForwardCompute(work, microbatches)
    visits = [
        visit if visit.action != "head" else Visit(
            record=visit.record, action="head", reads="weights", writes=False, phase="forward"
        )
        for visit in step_visits(work.spec, plan.tiers, (), "serial")
        if visit.phase == "forward" or visit.action == "head"
    ]  # fmt: skip
    run_pass(visits, work.ring, read=mover.read, compute=compute.visit, write=mover.write)
    return compute.sums


class ForwardCompute:
    """The compute stage of a forward pass over some microbatches."""

    def __init__(self, work: Workspace, microbatches: Sequence[Microbatch]) -> None:
        self.work = work
        self.sums = LossSums.zero(work.device)
        self.ids = [batch.ids.to(work.device) for batch in microbatches]
        self.targets: list[Targets] = []
        for batch in microbatches:
            positions, wanted = targets_of(batch.labels)
            self.targets.append((positions.to(work.device), wanted.to(work.device)))
        self.positions = [work.module.positions(ids.shape[1]) for ids in self.ids]
        self.hidden: list[Tensor] = []

    @torch.no_grad()
    def visit(self, visit: Visit, slot: RingSlot) -> None:
        """Do what the visit says with the resident record, and say when the slot is free."""
        if slot.ready is not None:
            slot.ready.order()
        layout = self.work.spec.records[visit.record]
        getattr(self, f"_{visit.action}")(layout, visit, slot)
        slot.done = self.work.transfer.fence()

    def _load_table(self, layout: RecordLayout, visit: Visit, slot: RingSlot) -> None:
        """Copy a piece of the embedding (or head) into the table; the last one starts forward."""
        rows = self._table_rows(layout, self.work.table)
        rows.copy_(self._weights(layout, slot).view_as(rows))
        if layout is self.work.spec.of_kind("embedding")[-1]:
            self.hidden = [torch.nn.functional.embedding(ids, self.work.table) for ids in self.ids]

    _load_head = _load_table

    def _forward(self, layout: RecordLayout, visit: Visit, slot: RingSlot) -> None:
        weights = param_views(self._weights(layout, slot), layout)
        for i, hidden in enumerate(self.hidden):
            self.hidden[i] = self.work.module.forward_only(weights, hidden, self.positions[i])

    def _head(self, layout: RecordLayout, visit: Visit, slot: RingSlot) -> None:
        for hidden, targets in zip(self.hidden, self.targets, strict=True):
            head_loss(
                self.work.module,
                hidden,
                targets,
                norm_weight=self._norm_weight(layout, slot),
                table=self.work.table,
                chunk_tokens=self.work.config.loss_chunk_tokens,
                sums=self.sums,
            )

    def _norm_weight(self, layout: RecordLayout, slot: RingSlot) -> Tensor:
        (weight,) = param_views(self._weights(layout, slot), layout).values()
        return weight

    def _weights(self, layout: RecordLayout, slot: RingSlot, out: Tensor | None = None) -> Tensor:
        """The record's weights in the compute dtype, flat: views of the slot, or joined to fp32."""
        views = self._state(layout, slot)
        if self.work.dtype == torch.bfloat16:
            flat = views.hi if out is None else out.copy_(views.hi)
        else:
            flat = self._weights_buffer(layout) if out is None else out
            join_master(views.hi, views.lo, flat)
        # A table piece ends with alignment gaps that are not rows of the table.
        return flat[: layout.num_params] if layout.kind in ("embedding", "head") else flat

    def _state(self, layout: RecordLayout, slot: RingSlot) -> StateViews:
        """The record's components: at home on the device, or where the reader has put them."""
        place = self.work.residents.get(layout.name, slot.device)
        return state_views(place, self.work.records[layout.name])

    def _weights_buffer(self, layout: RecordLayout) -> Tensor:
        buffer = self.work.layer_weights
        assert buffer is not None
        if layout.num_elements <= buffer.numel():
            return buffer[: layout.num_elements]
        return torch.empty(layout.num_elements, device=self.work.device)

    def _table_rows(self, layout: RecordLayout, table: Tensor) -> Tensor:
        (param,) = layout.params
        return table[param.row_start : param.row_start + param.shape[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The verdict on a step's gradient: its norm and the factor that scales it."""

    norm: float
    factor: float
    clipped: bool
    skipped: bool


class StepCompute(ForwardCompute):
    """The compute stage of a training step: forward, head, backward and update."""

    def __init__(self, work: Workspace, mover: Mover, inputs: StepInputs) -> None:
        super().__init__(work, inputs.microbatches)
        self._mover = mover
        self._inputs = inputs
        self._loss_scale = 1.0 / max(1, sum(len(wanted) for _, wanted in self.targets))
        self._activations = self._new_activations()
        self._kept: dict[int, tuple[Weights, list[tuple[Tensor, Tensor]]]] = {}
        self._squares: dict[str, Tensor] = {}
        self._settled: Settled | None = None
        self._one = torch.ones((), device=work.device)
        self._grad_hidden: list[Tensor] = []
        layers = work.spec.of_kind("layer")
        self._layer_index = {layout.name: i for i, layout in enumerate(layers)}

    def _new_activations(self) -> Activations:
        work = self.work
        if work.activation_slot is None:
            return DeviceActivations()
        shapes = [(*ids.shape, work.spec.hidden_size) for ids in self.ids]
        return HostActivations(
            work.activation_slot,
            transfer=work.transfer,
            device=work.device,
            dtype=work.dtype,
            shapes=shapes,
        )

    def _forward(self, layout: RecordLayout, visit: Visit, slot: RingSlot) -> None:
        i = self._layer_index[layout.name]
        if i in self.work.plan.keep_layers:
            self._forward_kept(i, layout, slot)
            return
        for m, hidden in enumerate(self.hidden):
            self._activations.keep(i, m, hidden)
        super()._forward(layout, visit, slot)

    def _forward_kept(self, i: int, layout: RecordLayout, slot: RingSlot) -> None:
        """Forward with the graph kept for backward, over weights that outlive the slot."""
        own = None
        if self.work.dtype == torch.float32 or layout.name not in self.work.residents:
            own = torch.empty(layout.num_elements, dtype=self.work.dtype, device=self.work.device)
        weights = trainable(param_views(self._weights(layout, slot, out=own), layout))
        graphs = []
        for m, hidden in enumerate(self.hidden):
            inputs = hidden.detach().requires_grad_()
            with torch.enable_grad():
                output = self.work.module.forward(weights, inputs, self.positions[m])
            graphs.append((inputs, output))
            self.hidden[m] = output.detach()
        self._kept[i] = (weights, graphs)

    def _head(self, layout: RecordLayout, visit: Visit, slot: RingSlot) -> None:
        work = self.work
        work.table_grad.zero_()
        work.norm_grad.zero_()
        (norm_grad,) = param_views(work.norm_grad, layout).values()
        for hidden, targets in zip(self.hidden, self.targets, strict=True):
            self._grad_hidden.append(
                head_backward(
                    work.module,
                    hidden,
                    targets,
                    norm_weight=self._norm_weight(layout, slot),
                    table=work.table,
                    norm_grad=norm_grad,
                    table_grad=work.table_grad,
                    loss_scale=self._loss_scale,
                    chunk_tokens=work.config.loss_chunk_tokens,
                    sums=self.sums,
                )
            )
        self.hidden.clear()
        for piece in work.spec.of_kind("head"):
            self._finish(piece, self._table_rows(piece, work.table_grad).view(-1))
        kept = self._finish(layout, work.norm_grad)
        if visit.writes:
            self._apply(layout, slot, kept, self._early_factor(layout))

    def _backward(self, layout: RecordLayout, visit: Visit, slot: RingSlot) -> None:
        work = self.work
        i = self._layer_index[layout.name]
        flat = work.layer_grad[: layout.num_elements].zero_()
        accumulators = param_views(flat, layout)
        weights, graphs = self._kept.pop(i, (None, None))
        if weights is None:
            weights = trainable(param_views(self._weights(layout, slot), layout))
        for m, grad in enumerate(self._grad_hidden):
            if graphs is None:
                inputs = self._activations.fetch(i, m).detach().requires_grad_()
                with torch.enable_grad():
                    output = work.module.forward(weights, inputs, self.positions[m])
            else:
                inputs, output = graphs[m]
            grad_input, *grads = backward(output, inputs, weights, grad)
            for name, value in zip(weights, grads, strict=True):
                accumulators[name] += value
            self._grad_hidden[m] = grad_input
        kept = self._finish(layout, flat)
        if visit.writes:
            self._apply(layout, slot, kept, self._early_factor(layout))
        if i == 0:
            self._embedding_backward()

    def _embedding_backward(self) -> None:
        """Scatter the gradient of the first layer's input into the table's accumulator."""
        work = self.work
        if not work.spec.tied:
            work.table_grad.zero_()  # the head's gradient has been finished
        for ids, grad in zip(self.ids, self._grad_hidden, strict=True):
            rows = grad.reshape(-1, grad.shape[-1]).float()
            work.table_grad.index_add_(0, ids.view(-1), rows)
        for piece in work.spec.of_kind("embedding"):
            self._finish(piece, self._table_rows(piece, work.table_grad).view(-1))

    def _update(self, layout: RecordLayout, visit: Visit, slot: RingSlot) -> None:
        late = visit.phase == "optimizer"
        if late and self.settle().skipped:
            return
        factor = self._final_factor(layout) if late else self._early_factor(layout)
        self._apply(layout, slot, self._kept_grad(layout), factor)

    def _finish(self, layout: RecordLayout, grad: Tensor) -> Tensor:
        """Round the fp32 sum to the kept dtype, add it to the norm and bring it home.

        Norm, factor and update all read the value returned here.
        """
        work = self.work
        resident = work.resident_grads.get(layout.name)
        if resident is not None:
            kept = resident.tensor(work.dtype, grad.numel())
        else:
            kept = grad if work.dtype == torch.float32 else torch.empty_like(grad, dtype=work.dtype)
        self._squares[layout.name] = round_and_square(grad, kept)
        home = work.grad_homes.get(layout.name)
        if home is not None:
            copied = work.transfer.to_host(
                kept, home.tensor(work.dtype, kept.numel()), after=work.transfer.fence()
            )
            copied.order()  # the accumulator is used again for the next layer
        return kept

    def _kept_grad(self, layout: RecordLayout) -> Tensor:
        """The final gradient of a record, on the device, of its components' length."""
        work = self.work
        resident = work.resident_grads.get(layout.name)
        if resident is not None:
            return resident.tensor(work.dtype, layout.num_elements)
        flat = torch.zeros(layout.num_elements, dtype=work.dtype, device=work.device)
        if layout.name not in work.grad_homes:  # a table: its accumulator still holds it
            rows = self._table_rows(layout, work.table_grad).view(-1)
            flat[: rows.numel()] = rows
            return flat
        home = work.grad_homes[layout.name]
        count = layout.num_params if layout.kind == "head" else layout.num_elements
        work.transfer.to_device(
            home.tensor(work.dtype, count), flat[:count], after=work.transfer.fence()
        ).order()
        return flat

    def _apply(self, layout: RecordLayout, slot: RingSlot, kept: Tensor, factor: Tensor) -> None:
        adamw_update(self._state(layout, slot), kept, factor, self._inputs.scalars)

    def _early_factor(self, layout: RecordLayout) -> Tensor:
        """In backward: the factor of modes that know it, and 1 as the guess of `exact`."""
        mode = self.work.config.clip_mode
        if mode == "per_layer":
            return clip_factor(self._own_norm(layout), self.work.config.max_grad_norm)
        if mode == "lagged":
            return self._lagged_factor()
        return self._one

    def _own_norm(self, layout: RecordLayout) -> Tensor:
        """Norm of a layer's gradient; the pieces of a table count together."""
        pieces = [layout]
        if layout.kind in ("embedding", "head"):
            pieces = list(self.work.spec.of_kind(layout.kind))
        return torch.stack([self._squares[piece.name] for piece in pieces]).sum().sqrt()

    def _final_factor(self, layout: RecordLayout) -> Tensor:
        if self.work.config.clip_mode == "exact":
            return self._one * self.settle().factor
        return self._early_factor(layout)

    def _lagged_factor(self) -> Tensor:
        last = self._inputs.last_norm
        if last is None:
            return self._one
        norm = torch.tensor(last, dtype=torch.float64, device=self.work.device)
        return clip_factor(norm, self.work.config.max_grad_norm)

    def settle(self) -> Settled:
        """The norm over all records, in record order, and what follows from it; once per step."""
        if self._settled is None:
            total = torch.zeros((), dtype=torch.float64, device=self.work.device)
            for layout in self.work.spec.records:
                total = total + self._squares[layout.name]
            norm = total.sqrt()
            mode = self.work.config.clip_mode
            factor = self._one
            if mode == "exact":
                factor = clip_factor(norm, self.work.config.max_grad_norm)
            elif mode == "lagged":
                factor = self._lagged_factor()
            skipped = not bool(torch.isfinite(norm))
            self._mover.drop_writes = skipped
            self._settled = Settled(
                norm=float(norm),
                factor=float(factor),
                clipped=not skipped and bool(factor < 1),
                skipped=skipped,
            )
        return self._settled
