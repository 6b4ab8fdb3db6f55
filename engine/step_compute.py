"""The compute stage of a training step: what is done with each record while it is resident."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.storage import Fence

from .activations import new_activations
from .balance import step_balance
from .data import Microbatch
from .factors import Factors, Settled
from .forward import ForwardCompute
from .gradients import Gradients
from .head import head_backward
from .homes import Way
from .layer import Weights, param_views
from .layer_graph import LayerGraph, backward, forward_graph
from .model import RecordKind, RecordLayout
from .mover import Mover
from .optimizer import AdamScalars, adamw_update
from .pending import PendingUpdate
from .visits import Visit
from .workspace import RingSlot, Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """What a step needs besides the state: scalars of the update and of clipping.

    `last_norm` is the previous step's gradient norm, for clip mode `lagged`; `pending` the update
    that the step before left to this one.
    """

    microbatches: Sequence[Microbatch]
    scalars: AdamScalars
    way: Way
    last_norm: float | None
    pending: PendingUpdate | None = None
    another_follows: bool = False


class StepCompute(ForwardCompute):
    """The compute stage of a training step: forward, head, backward and update."""

    def __init__(self, work: Workspace, mover: Mover, inputs: StepInputs) -> None:
        super().__init__(work, inputs.microbatches)
        self._mover = mover
        self._inputs = inputs
        shapes = [(*ids.shape, work.spec.hidden_size) for ids in self.ids]
        self._activations = new_activations(work, shapes)
        self._kept: dict[int, tuple[Weights, list[LayerGraph]]] = {}
        self.balance = step_balance(work.spec.experts, inputs.microbatches, work.device)
        self._gradients = Gradients(work)
        self._factors = Factors(work, self._gradients, inputs.last_norm)
        self._grad_hidden: dict[int, Tensor] = {}  # by microbatch
        self._sums_landed: dict[str, Fence] = {}  # gradients so far, on their way to the host
        layers = work.spec.of_kind("layer")
        self._first_backward_layer = work.spec.first_backward_layer
        self._layer_index = {layout.name: i for i, layout in enumerate(layers)}

    def _forward(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        i = self._layer_index[layout.name]
        if i >= self._first_backward_layer and i in self.work.plan.keep_layers:
            self._forward_kept(i, layout, slot)
        else:
            super()._forward(layout, visit, slot)

    def _enter(self, layout: RecordLayout, microbatch: int) -> None:
        i = self._layer_index[layout.name]
        if i >= self._first_backward_layer:
            self._activations.keep(i, microbatch, self.hidden[microbatch])

    def _forward_kept(self, i: int, layout: RecordLayout, slot: RingSlot | None) -> None:
        """Forward with the graph kept for backward, over weights that outlive the slot."""
        own = None
        stored = self._as_stored(layout, slot)
        if stored is None or layout.name not in self.work.residents:
            own = torch.empty(layout.num_elements, dtype=self.work.dtype, device=self.work.device)
        weights = self.work.module.leaves(layout, self._layer_weights(layout, slot, own))
        graphs = []
        for m, hidden in self.hidden.items():
            graph = forward_graph(self.work.module, layout, weights, hidden, self.positions[m])
            self.balance.count(m, graph.routed)
            graphs.append(graph)
            self.hidden[m] = graph.output.detach()
        self._kept[i] = (weights, graphs)

    def _head(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        work = self.work
        head = work.spec.of_kind("embedding" if work.spec.tied else "head")
        if self._is_first(visit):
            work.norm_grad.zero_()
            if work.table_grad is not None:
                work.table_grad.zero_()
        (norm_grad,) = param_views(work.norm_grad, layout).values()
        for m in self.chosen(visit):
            scale = self._token_scale(m, layout, slot)
            self._grad_hidden[m] = head_backward(
                work.module,
                self.hidden.pop(m),
                self.targets[m],
                norm_weight=self._norm_weight(layout, slot),
                table=work.table,
                norm_grad=None if layout.base else norm_grad,
                table_grad=None if head[0].base else work.table_grad,
                loss_scale=scale,
                chunk_tokens=work.config.loss_chunk_tokens,
                sums=self.preferences.tokens if self.answers else self.sums,
            )
        if not self._is_last(visit):
            return
        self._finish_table("head")
        if layout.base is not None:
            return
        kept = self._gradients.finish(layout, work.norm_grad)
        if visit.writes:
            self._apply(layout, slot, kept, self._factors.early(layout))

    def _backward(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        work = self.work
        i = self._layer_index[layout.name]
        trained = layout if layout.base is None else self._beside.get(layout.name)
        flat = self._sum_so_far(trained, visit)
        accumulators = param_views(flat, trained) if trained else {}
        weights, graphs = self._kept.pop(i, (None, None))
        if weights is None:
            weights = work.module.leaves(layout, self._layer_weights(layout, slot))
        for m in self.chosen(visit):
            graph = None if graphs is None else graphs[m]
            self._backward_microbatch(layout, weights, m, graph, accumulators)
        if not self._is_last(visit):
            self._send_sum(layout, flat)
            return
        if trained is not None:
            kept = self._gradients.finish(trained, flat)
            if visit.writes:
                self._apply(layout, slot, kept, self._factors.early(layout))
        if i == 0 and work.spec.of_kind("embedding")[0].base is None:
            self._embedding_backward()

    def _backward_microbatch(
        self,
        layout: RecordLayout,
        weights: Weights,
        m: int,
        graph: LayerGraph | None,
        accumulators: Weights,
    ) -> None:
        """Backward of a layer for one microbatch, computed again unless its graph was kept.

        A call of its own: the graph and gradients that it makes are gone when the next microbatch
        begins.
        """
        if graph is None:
            hidden = self._activations.fetch(self._layer_index[layout.name], m)
            positions = self.positions[m]
            graph = forward_graph(self.work.module, layout, weights, hidden, positions)
        routers = self.balance.gradients(m, graph.routed)
        self._grad_hidden[m], grads = backward(graph, weights, self._grad_hidden[m], routers)
        for name, value in grads.items():
            accumulators[name] += value

    def _is_first(self, visit: Visit) -> bool:
        return not visit.microbatch

    def _is_last(self, visit: Visit) -> bool:
        return visit.microbatch in (None, len(self.ids) - 1)

    def _sum_so_far(self, layout: RecordLayout | None, visit: Visit) -> Tensor:
        """The sum of a layer's gradients over the microbatches before, on the device, fp32.

        `layout` is what is trained of the layer; nothing may be.
        """
        work = self.work
        flat = work.layer_grad[: layout.num_elements if layout else 0]
        if layout is None or self._is_first(visit):
            return flat.zero_()
        landed = self._sums_landed[layout.name]
        source = work.gradient_sums[layout.name].tensor(torch.float32, layout.num_elements)
        work.transfer.to_device(
            source, flat, after=(work.transfer.fence(), landed), urgent=True
        ).order()
        return flat

    def _send_sum(self, layout: RecordLayout, flat: Tensor) -> None:
        """The sum goes to host memory, until the next microbatch comes to the layer."""
        work = self.work
        home = work.gradient_sums[layout.name].tensor(torch.float32, layout.num_elements)
        landed = work.transfer.to_host(flat, home, after=work.transfer.fence(), urgent=True)
        landed.order()  # the next layer uses the accumulator
        self._sums_landed[layout.name] = landed

    def _embedding_backward(self) -> None:
        """Scatter the gradient of the first layer's input into the table's accumulator."""
        work = self.work
        assert work.table_grad is not None
        if not work.spec.tied:
            work.table_grad.zero_()  # the head's gradient has been finished
        for m, ids in enumerate(self.ids):
            rows = work.module.embed_grad(self._grad_hidden[m])
            work.table_grad.index_add_(0, ids.view(-1), rows)
        self._finish_table("embedding")

    def _finish_table(self, kind: RecordKind) -> None:
        """The gradients of a table's pieces are whole, if it is trained."""
        work = self.work
        for piece in work.spec.of_kind(kind):
            if piece.base is None:
                assert work.table_grad is not None
                self._gradients.finish(piece, work.table_rows(piece, work.table_grad).view(-1))

    def _update(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        late = visit.phase == "optimizer"
        if late and self.settle().skipped:
            return
        if visit.on_host:
            factor_there = self._factors.on_host(layout, late=late)
            self._mover.host_updates.submit(
                layout, factor_there, self._inputs.scalars, is_guess=not late
            )
            return
        factor = self._factors.final(layout) if late else self._factors.early(layout)
        self._apply(layout, slot, self._gradients.kept(layout, early=not late), factor)

    def _apply(
        self, layout: RecordLayout, slot: RingSlot | None, kept: Tensor, factor: Tensor
    ) -> None:
        adamw_update(self.work.state(layout, slot), kept, factor, self._inputs.scalars)
        self.work.grad_buffers.let_go()
        cached = self.work.cached.get(layout.name)
        if cached is not None and slot is not None:
            cached.take_from(slot.device)

    def _before(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        if visit.pending and self._inputs.pending is not None:
            self._inputs.pending.apply(self.work, layout, slot)

    def left_pending(self) -> PendingUpdate | None:
        """What the next step owes every record; nothing after a step that is skipped."""
        if self.settle().skipped:
            return None
        factors = {layout.name: self._factors.final(layout) for layout in self.work.spec.trained}
        return PendingUpdate(factors=factors, scalars=self._inputs.scalars)

    def settle(self) -> Settled:
        """The verdict on the step's gradient; once per step."""
        settled = self._factors.settle()
        self._mover.drop_writes = settled.skipped
        return settled
