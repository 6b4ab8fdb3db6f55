"""The compute stage of a forward pass: embedding, layers and loss, over resident records."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.storage import Mark

from .balance import Balance, Unbalanced
from .data import Microbatch
from .dpo import AnswerTokens, PreferenceSums, pair_loss
from .experts import Routed
from .frozen import read_frozen
from .head import LossSums, Targets, head_loss, target_log_probs, targets_of
from .layer import LayerModule, Weights, param_views
from .model import RecordLayout
from .mover import Mover
from .places import Positions
from .state import read_weights
from .state_record import coded_elements
from .totals import Totals
from .visits import Visit, step_visits
from .workspace import RingSlot, Workspace


def evaluate_group(work: Workspace, mover: Mover, microbatches: Sequence[Microbatch]) -> Totals:
    """What the loss of some microbatches comes to, in one forward pass over the layers."""
    compute = ForwardCompute(work, microbatches)
    mover.pipeline.run(forward_visits(work), compute.visit)
    return compute.totals()


def forward_visits(work: Workspace) -> list[Visit]:
    """The order of a forward pass by itself: embedding, layers, head; everything is only read."""
    return [
        visit if visit.action != "head" else Visit(
            record=visit.record, action="head", reads="weights", writes=False, phase="forward"
        )
        for visit in step_visits(
            work.spec, work.plan.tiers, (), "serial", pending=False, num_slots=1
        )
        if visit.phase == "forward" or visit.action == "head"
    ]  # fmt: skip


class VisitMarks(NamedTuple):
    """When compute came to a visit, when the record was there, and when compute was done."""

    came: Mark
    began: Mark
    ended: Mark


class ForwardCompute:
    """The compute stage of a forward pass over some microbatches."""

    def __init__(self, work: Workspace, microbatches: Sequence[Microbatch]) -> None:
        self.work = work
        self.sums = LossSums.zero(work.device)
        self.preferences = PreferenceSums.zero(work.device)
        self.marks: list[VisitMarks] = []
        self.ids = [batch.ids.to(work.device) for batch in microbatches]
        self.targets: list[Targets] = []
        self.answers: list[AnswerTokens] = []  # of preferences
        self._is_dpo = work.config.objective == "dpo"
        for batch in microbatches:
            positions, wanted = targets_of(batch.labels)
            self.targets.append((positions.to(work.device), wanted.to(work.device)))
            if self._is_dpo:
                self.answers.append(AnswerTokens.of(batch, positions, work.device))
        self.positions = positions_of_each(work.module, microbatches)
        self.balance: Balance | Unbalanced = Unbalanced()
        self.hidden: dict[int, Tensor] = {}  # by microbatch
        self._beside = work.spec.beside

    @torch.no_grad()
    def visit(self, visit: Visit, slot: RingSlot | None) -> None:
        """Do what the visit says with the resident record, and say when the slot is free."""
        transfer = self.work.transfer
        came = transfer.mark()
        if slot is not None:
            slot.ready.order()
        began = transfer.mark()
        layout = self.work.spec.records[visit.record]
        self._before(layout, visit, slot)
        getattr(self, f"_{visit.action}")(layout, visit, slot)
        if slot is not None:
            slot.done = transfer.fence()
        self.marks.append(VisitMarks(came, began, transfer.mark()))

    def chosen(self, visit: Visit) -> Sequence[int]:
        """The microbatches that the visit computes on."""
        return range(len(self.ids)) if visit.microbatch is None else (visit.microbatch,)

    def _before(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        """What is owed to the record before its visit; nothing in a mere forward pass."""

    def _load_table(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        """Copy a piece of the embedding (or head) into the table; the last one starts forward."""
        rows = self.work.table_rows(layout, self.work.table)
        rows.copy_(self._weights(layout, slot).view_as(rows))
        if layout is self.work.spec.of_kind("embedding")[-1]:
            for m in self.chosen(visit):
                self.hidden[m] = self.work.module.embed(self.ids[m], self.work.table)

    _load_head = _load_table

    def _catch_up(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        """Nothing but what was owed to the record."""

    def _forward(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        weights = self._layer_weights(layout, slot)
        module = self.work.module
        for m in self.chosen(visit):
            routed: list[Routed] = []
            self._enter(layout, m)
            hidden = self.hidden[m]
            self.hidden[m] = module.forward_only(layout, weights, hidden, self.positions[m], routed)
            self.balance.count(m, routed)

    def _enter(self, layout: RecordLayout, microbatch: int) -> None:
        """What a layer's input is still wanted for; in a mere forward pass, nothing."""

    def totals(self) -> Totals:
        """What the loss came to; waits for the device."""
        return self.preferences.totals() if self._is_dpo else self.sums.totals()

    def _head(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        for m in self.chosen(visit):
            if self._is_dpo:
                self._pair_weights(m, layout, slot)
                continue
            head_loss(
                self.work.module,
                self.hidden[m],
                self.targets[m],
                norm_weight=self._norm_weight(layout, slot),
                table=self.work.table,
                chunk_tokens=self.work.config.loss_chunk_tokens,
                sums=self.sums,
            )

    def _pair_weights(self, m: int, layout: RecordLayout, slot: RingSlot | None) -> Tensor:
        """Count the loss of a microbatch's preferences; what pair_loss returns of it."""
        reference = self.answers[m].reference
        assert reference is not None, "reference log-probabilities come before the first step"
        log_probs = self._log_probs(m, layout, slot)
        return pair_loss(log_probs, reference, self.work.config, self.preferences)

    def _log_probs(self, m: int, layout: RecordLayout, slot: RingSlot | None) -> Tensor:
        """Log-probabilities of a microbatch's answers, float64 (preferences, 2)."""
        tokens, hits = target_log_probs(
            self.work.module,
            self.hidden[m],
            self.targets[m],
            norm_weight=self._norm_weight(layout, slot),
            table=self.work.table,
            chunk_tokens=self.work.config.loss_chunk_tokens,
        )
        self.answers[m].count(hits, self.preferences)
        return self.answers[m].log_probs(tokens)

    def _token_scale(self, m: int, layout: RecordLayout, slot: RingSlot | None) -> float | Tensor:
        """What a target's cross entropy counts in the step's mean loss: the same for each, or by
        the loss of its preference, which is counted."""
        if not self._is_dpo:
            return 1.0 / max(1, sum(len(wanted) for _, wanted in self.targets))
        weights = self._pair_weights(m, layout, slot)
        weights /= sum(one.num_pairs for one in self.answers)
        return weights.float().view(-1)[self.answers[m].answer]

    def _layer_weights(
        self, layout: RecordLayout, slot: RingSlot | None, out: Tensor | None = None
    ) -> Weights:
        """A layer's parameters by name: those of its record, and those that lie beside it."""
        weights = param_views(self._weights(layout, slot, out), layout)
        beside = self._beside.get(layout.name)
        if beside is not None:
            room = None
            if self._as_stored(beside, None) is None:
                room = torch.empty(beside.num_elements, device=self.work.device)
            weights |= param_views(self._weights(beside, None, room), beside)
        return weights

    def _norm_weight(self, layout: RecordLayout, slot: RingSlot | None) -> Tensor:
        (weight,) = param_views(self._weights(layout, slot), layout).values()
        return weight

    def _weights(
        self, layout: RecordLayout, slot: RingSlot | None, out: Tensor | None = None
    ) -> Tensor:
        """The record's weights in the compute dtype, flat: views of the slot, or converted."""
        flat = self._as_stored(layout, slot)
        if flat is None:
            flat = self._weights_buffer(layout) if out is None else out
            if layout.base is None:
                cached = self.work.cached.get(layout.name)
                stored = self.work.state(layout, slot) if cached is None else cached.views()
                read_weights(stored, flat)
            else:
                read_frozen(layout, self.work.frozen(layout, slot), flat)
        elif out is not None:
            flat = out.copy_(flat)
        # A table piece ends with alignment gaps that are not rows of the table.
        return flat[: layout.num_params] if layout.kind in ("embedding", "head") else flat

    def _as_stored(self, layout: RecordLayout, slot: RingSlot | None) -> Tensor | None:
        """The weights where they lie, if that is what is computed with."""
        if self.work.dtype != torch.bfloat16 or coded_elements(layout):
            return None
        cached = self.work.cached.get(layout.name)
        if cached is not None:
            return cached.hi()
        views = self.work.frozen if layout.base is not None else self.work.state
        return views(layout, slot).hi

    def _weights_buffer(self, layout: RecordLayout) -> Tensor:
        buffer = self.work.layer_weights
        if layout.num_elements <= buffer.numel():
            return buffer[: layout.num_elements]
        return torch.empty(layout.num_elements, dtype=self.work.dtype, device=self.work.device)


def positions_of_each(module: LayerModule, batches: Sequence[Microbatch]) -> list[Positions]:
    """Positions of microbatches; once for those that are alike: the device is idle meanwhile."""
    made: dict[Hashable, Positions] = {}
    each = []
    for batch in batches:
        width, lengths = batch.ids.shape[1], batch.lengths
        key = module.places.key(width, lengths, packed=batch.packed)
        if key not in made:
            made[key] = module.positions(width, lengths, packed=batch.packed)
        each.append(made[key])
    return each
