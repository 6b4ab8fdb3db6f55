"""What each visit of a step takes: bytes over each link, seconds of compute. Pure, no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from .config import TrainConfig
from .flops import backward_flops, head_flops, layer_flops
from .homes import Placement, Tier
from .model import ModelSpec, RecordLayout
from .rates import Rates, Work
from .sizes import Sizes, kept_grad_bytes
from .state_record import converted_elements
from .step_load import StepLoad
from .visits import Phase, Visit, visit_bytes

SUM_BYTES = 4  # of an element of a gradient's sum
FAR: tuple[Tier, ...] = ("host", "nvme")  # tiers from which layer inputs come back over a link

_State = tuple[Tier, bool, Tier | None, bool]  # home, kept, where its input waits, gradients far

Costs = tuple[float, float, float, float, float]  # by timeline.STAGES: compute in seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitCost:
    """One visit: payload bytes by link (whole numbers), and seconds of compute.

    `costs` is what the stages of the pipeline do; bytes that compute itself waits for are in its
    seconds there, and not in the link's stage.
    """

    phase: Phase
    costs: Costs
    bytes: tuple[int, int, int, int]  # by report.LINKS
    host_seconds: float = 0.0  # of the processor in the background
    own_compute_seconds: float = 0.0  # without what is done for the table behind the first layer

    @property
    def own_costs(self) -> Costs:
        """Those of the visited layer alone: the same for all that are alike."""
        read, up, _, down, written = self.costs
        return read, up, self.own_compute_seconds, down, written


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a visit stands among the microbatches: of one of them `alone`, the first, the last."""

    alone: bool
    first: bool
    last: bool


class StepModel:
    """Costs of the visits of one model and run on one box. Layers that are alike are asked once."""

    def __init__(self, sizes: Sizes, rates: Rates, load: StepLoad) -> None:
        self.sizes = sizes
        self.spec: ModelSpec = sizes.spec
        self.slot_bytes = sizes.slot_bytes
        self.config: TrainConfig = sizes.config
        self.rates = rates
        self.load = load
        self._width = sizes.compute_bytes
        self._microbatch_tokens = max(1, load.tokens // load.microbatches)
        self._hidden_bytes = load.tokens * self.spec.hidden_size * self._width
        self._known: dict[object, VisitCost] = {}
        self._quick: dict[tuple[int, _State], tuple[Visit, VisitCost]] = {}  # by a visit's id
        layers = self.spec.of_kind("layer")
        names = {record.name: i for i, record in enumerate(self.spec.records)}
        self.layer_of = {names[layer.name]: i for i, layer in enumerate(layers)}
        self._layers = [self.layer_of.get(i, -1) for i in range(len(self.spec.records))]
        self._head = self.spec.of_kind("head")
        self._embedding = self.spec.of_kind("embedding")
        self._beside = self.spec.beside
        self.alike = _alike(
            [
                (one.kind, one.num_elements, one.base, self._summed_elements(one))
                for one in self.spec.records
            ]
        )

    def with_steps_of(self, factor: int) -> "StepModel":
        """The same box and model with so many times the tokens, in microbatches as large."""
        load = StepLoad(
            tokens=factor * self.load.tokens,
            microbatches=factor * self.load.microbatches,
            row_tokens=self.load.row_tokens,
            trained_tokens=factor * self.load.trained_tokens,
        )
        return StepModel(self.sizes, self.rates, load)

    def visits(self, placement: Placement, visits: Sequence[Visit]) -> list[VisitCost]:
        """The cost of each visit, in order."""
        states = self._states(placement)
        quick = self._quick
        found = []
        for visit in visits:
            state = states[visit.record]
            known = quick.get((id(visit), state))
            if known is None or known[0] is not visit:
                known = (visit, self._cost_of(visit, state))
                if visit.microbatch is None:  # else each step has new ones
                    quick[id(visit), state] = known
            found.append(known[1])
        return found

    def _states(self, placement: Placement) -> list[_State]:
        """What the cost of each record's visits depends on beside the visit."""
        kept, on_host = set(placement.keep_layers), set(placement.on_host)
        waits = {layer: tier for tier in FAR for layer in placement.parked(tier)}
        near = placement.grad_tier == "device"
        states = []
        for i, (layer, tier) in enumerate(zip(self._layers, placement.tiers, strict=True)):
            gradients = placement.keep_grads and tier != "device" and (not near or i in on_host)
            states.append((tier, layer in kept, waits.get(layer), gradients))
        return states

    def _cost_of(self, visit: Visit, state: _State) -> VisitCost:
        """The cost of a visit; that of layers that are alike is counted once."""
        tier, kept, parked, gradients = state
        key = (
            self.alike[visit.record], state, visit.action, visit.reads, visit.writes, visit.phase,
            visit.pending, self._layers[visit.record] == 0, visit.on_host,
            visit.microbatch and self._place(visit), visit.microbatch is None,
        )  # fmt: skip
        cost = self._known.get(key)
        if cost is None:
            record = self.spec.records[visit.record]
            cost = self._known[key] = self._cost(
                visit, record, tier, kept=kept, parked=parked, gradients=gradients
            )
        return cost

    def _cost(
        self,
        visit: Visit,
        record: RecordLayout,
        tier: Tier,
        *,
        kept: bool,
        parked: Tier | None,
        gradients: bool,
    ) -> VisitCost:
        if visit.on_host:
            return self._host_cost(visit, record)
        moved = visit_bytes(self.spec, self.config, visit, tier)
        up, down = self._summed_on_host(visit, record)
        goes, comes = self._parked_bytes(visit, parked)
        up, down = up + comes, down + goes
        if gradients and self._place(visit).last:
            down += self._finished_bytes(visit, record)
            if visit.pending or (visit.action == "update" and visit.phase == "optimizer"):
                up += kept_grad_bytes(self.config, record)
        compute = self._compute(visit, record, kept=kept) + self.rates.visit_seconds
        table = self._table_seconds(visit)
        h2d, d2h = moved.get("h2d", 0), moved.get("d2h", 0)
        read, written = moved.get("nvme_read", 0), moved.get("nvme_write", 0)
        if parked == "nvme":
            read, written = read + comes, written + goes
        if self.config.device == "cpu":  # these copies are made by the thread that computes
            compute += up / self.rates.h2d + down / self.rates.d2h
            reader, writer = self._calls(read, written)
            costs: Costs = (read, h2d + reader, compute + table, d2h + writer, written)
        else:
            costs = (read, h2d + up, compute + table, d2h + down, written)
        return VisitCost(
            phase=visit.phase,
            costs=costs,
            bytes=(read, written, h2d + up, d2h + down),
            own_compute_seconds=compute,
        )

    def _calls(self, read: float, written: float) -> tuple[float, float]:
        """What the store takes for a record beside its bytes, as bytes of the copies up and down:
        the threads that read and write make those, too, and the drive is idle meanwhile."""
        up, down = self.rates.h2d, self.rates.d2h
        in_read, in_write = self.rates.read_seconds, self.rates.write_seconds
        return up * in_read * bool(read), down * in_write * bool(written)

    def _host_cost(self, visit: Visit, record: RecordLayout) -> VisitCost:
        """An update by the processor. Where it computes as well, that waits meanwhile."""
        aside = visit.phase == "backward"
        seconds = self._per_element(
            "host_update_aside" if aside else "host_update", record.num_elements
        )
        up = visit_bytes(self.spec, self.config, visit, "host")["h2d"]  # renews cached weights
        alone = self.config.device == "cpu"
        return VisitCost(
            phase=visit.phase,
            costs=(0, 0, seconds + up / self.rates.h2d, 0, 0) if alone else (0, up, 0.0, 0, 0),
            bytes=(0, 0, up, 0),
            host_seconds=0.0 if alone else seconds,
        )

    def _place(self, visit: Visit) -> "_Place":
        m, count = visit.microbatch, self.load.microbatches
        return _Place(alone=m is not None, first=not m, last=m is None or m == count - 1)

    def _parts(self, visit: Visit) -> int:
        """By how much less than a step a visit to one microbatch computes."""
        return 1 if visit.microbatch is None else self.load.microbatches

    def _parked_bytes(self, visit: Visit, parked: Tier | None) -> tuple[int, int]:
        """Bytes of the layer's input that go away in forward, and come back in backward."""
        hidden = 0 if parked is None else self._hidden_bytes // self._parts(visit)
        return (
            hidden if visit.action == "forward" else 0,
            hidden if visit.action == "backward" else 0,
        )

    def _summed_on_host(self, visit: Visit, record: RecordLayout) -> tuple[int, int]:
        """Bytes up and down of a layer's gradient so far, where microbatches come one by one."""
        if visit.action != "backward" or visit.microbatch is None:
            return 0, 0
        place, size = self._place(visit), SUM_BYTES * self._summed_elements(record)
        return 0 if place.first else size, 0 if place.last else size

    def _finished_bytes(self, visit: Visit, record: RecordLayout) -> int:
        """Bytes of the gradients that are complete at the end of this visit."""
        if visit.action == "head":
            return sum(kept_grad_bytes(self.config, one) for one in (*self._head, record))
        return kept_grad_bytes(self.config, record) if visit.action == "backward" else 0

    def _compute(self, visit: Visit, record: RecordLayout, *, kept: bool) -> float:
        """Seconds that the compute stage works on the record."""
        elements, memory = record.num_elements, self.rates.device_memory
        seconds = 0.0
        # Whatever the visit reads: weights in a cache, or held in a slot, are converted, too.
        weights = visit.action not in ("update", "catch_up")
        if weights and not (kept and visit.action == "backward"):
            both = (record, self._beside.get(record.name))
            joined = sum(converted_elements(one, self.config.compute_dtype) for one in both if one)
            seconds += self._per_element("join_kept" if kept else "join", joined)
        if visit.writes or visit.action == "update":
            seconds += self._per_element("update", elements)
        if visit.action in ("load_table", "load_head"):
            seconds += 2 * self._width * elements / memory
            if visit.action == "load_table":  # its last piece makes the first layer's input
                seconds += 2 * self._hidden_bytes / memory / len(self._embedding)
        elif visit.action == "forward":
            layer = self._layer_seconds(record, backward=False, kept=kept)
            seconds += layer / self._parts(visit)
        elif visit.action == "head":
            seconds += self._head_seconds() / self._parts(visit)
        elif visit.action == "backward":
            layer = self._layer_seconds(record, backward=True, kept=kept)
            layer += 0 if kept else self._layer_seconds(record, backward=False)
            summed = self._summed_elements(record)
            layer += self._per_element("accumulate", summed) * self.load.microbatches
            seconds += layer / self._parts(visit)
            seconds += SUM_BYTES * summed / memory  # the sum begins at zero
            seconds += self._per_element("finish", summed) if self._place(visit).last else 0
        return seconds

    def _table_seconds(self, visit: Visit) -> float:
        """Behind the first layer's backward pass the gradient of its input goes into the table's,
        whose rows are finished then."""
        first = visit.action == "backward" and self.layer_of[visit.record] == 0
        if not first or not self._place(visit).last or self._embedding[0].base is not None:
            return 0.0
        table = self.spec.vocab_size * self.spec.hidden_size
        touched = 3 * SUM_BYTES * self.load.tokens * self.spec.hidden_size
        touched += 0 if self.spec.tied else SUM_BYTES * table  # the sum begins at zero
        return touched / self.rates.device_memory + self._per_element("finish", table)

    def _summed_elements(self, record: RecordLayout) -> int:
        """Elements of the gradients that a layer's backward pass sums up."""
        if record.base is None:
            return record.num_elements
        beside = self._beside.get(record.name)
        return 0 if beside is None else beside.num_elements

    def _layer_seconds(self, record: RecordLayout, *, backward: bool, kept: bool = False) -> float:
        flops = backward_flops if backward else layer_flops
        operations = flops(
            self.spec, record, tokens=self.load.tokens, row_tokens=self.load.row_tokens
        )
        rate = self.rates.flops(self._microbatch_tokens, backward=backward, kept=kept)
        return operations / rate

    def _head_seconds(self) -> float:
        """Loss and both gradients; rows of a table that is the head's own are finished here."""
        table = self.spec.vocab_size * self.spec.hidden_size
        rate = self.rates.head_flops or self.rates.flops(self._microbatch_tokens, backward=True)
        tokens, dpo = self.load.trained_tokens, self.config.objective == "dpo"
        products = head_flops(self.spec, trained_tokens=tokens, of_preferences=dpo) / rate
        if not self.spec.trains_table:
            return products
        seconds = products + SUM_BYTES * table / self.rates.device_memory
        return seconds + (0.0 if self.spec.tied else self._per_element("finish", table))

    def _per_element(self, work: Work, elements: int) -> float:
        return elements / self.rates.params_per_second(work)


def _alike(kinds: Sequence[object]) -> list[int]:
    """A number for each that is the same for equals: quicker to look up by."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(kind, len(numbers)) for kind in kinds]
