"""How many bytes a run holds, per tier and purpose, for a given placement. Pure, no torch."""

from dataclasses import dataclass
from functools import cached_property

from headrace.storage import DTYPE_BYTES, PAGE_BYTES, round_up

from .config import NUM_ANSWERS, TrainConfig
from .frozen_pieces import piece_bytes
from .home_sums import HomeSums
from .homes import Placement
from .model import CODED_FORMATS, ModelSpec, RecordLayout
from .packed_way import packed_way
from .packing import Arrangement, RowLengths, extent_of, settle_microbatch
from .parked import NUM_ACTIVATION_BUFFERS, NUM_PINNED_BUFFERS
from .sample_size import sample_bytes
from .saved import is_compiled, saved_token_bytes, saves_input, under_way_token_bytes
from .state_record import cached_weight_bytes, state_padded_bytes, state_record
from .working import MIB, backward_peak_bytes, logits_bytes, loose_bytes

# Measured: thread stacks and library scratch; on a GPU CUDA's context and the kernels it loads.
RUNTIME_BYTES = {"cpu": 96 * MIB, "cuda": 1024 * MIB}
# Gradients on their way to or from host memory: on a GPU the copy of one overlaps the next.
NUM_GRAD_BUFFERS = {"cpu": 1, "cuda": 2}
_DEVICE_ALIGNMENT = 512


@dataclass(frozen=True, kw_only=True)  # no slots: what every placement asks for is summed once
class Sizes:
    """Byte counts of a model and a run, from which every placement is summed."""

    spec: ModelSpec
    config: TrainConfig
    step_tokens: int  # computed tokens of the largest step, padding too
    microbatch_tokens: int  # of the largest microbatch
    saved_token_bytes: int  # that autograd saves in a layer for a token
    under_way_token_bytes: int  # that backward of a layer holds besides at its peak
    state_bytes: tuple[int, ...]  # of each record in memory, whole pages
    grad_bytes: tuple[int, ...]  # of each record's gradient where it is kept
    piece_bytes: int  # through which frozen weights are converted
    layer_elements: int  # of the largest layer
    layer_grad_elements: int  # of the largest sum of gradients that a layer has
    weight_grad_elements: int  # of the largest gradient of one weight of a layer
    slot_bytes: int  # that hold the state of any record, and of a frozen one what is converted
    layer_weights_bytes: int  # of weights in the compute dtype, if the record has another form
    largest_trained: int  # elements of the largest record that is trained
    mean_step_tokens: float | None = None  # where the rows are known
    num_steps: int | None = None  # likewise

    @classmethod
    def of(
        cls,
        spec: ModelSpec,
        config: TrainConfig,
        longest_row_tokens: int,
        lengths: RowLengths | None = None,
    ) -> "Sizes":
        """Counts for these rows, or for any rows of at most `longest_row_tokens` tokens."""
        config = settle_microbatch(config, longest_row_tokens)
        if lengths is None:
            extent = Arrangement.of(config).limit(longest_row_tokens)
        else:
            extent = extent_of(lengths, config)
        states = tuple(state_padded_bytes(record, config.state_format) for record in spec.records)
        piece, width = piece_bytes(spec), DTYPE_BYTES[config.compute_dtype]
        largest_layer = max(record.num_elements for record in spec.of_kind("layer"))
        coded = any(record.base in CODED_FORMATS for record in spec.records)
        converted = config.compute_dtype == "float32" or coded
        of_layers = [record for record in spec.trained if record.kind in ("layer", "beside")]
        wide = {"kernel": 0, "mask": extent.microbatch_tokens}
        row_tokens = wide.get(packed_way(spec, config), longest_row_tokens)
        return cls(
            spec=spec,
            config=config,
            step_tokens=extent.step_tokens,
            microbatch_tokens=extent.microbatch_tokens,
            saved_token_bytes=saved_token_bytes(spec, config, row_tokens),
            under_way_token_bytes=under_way_token_bytes(spec, config, row_tokens),
            grad_bytes=tuple(kept_grad_bytes(config, record) for record in spec.records),
            piece_bytes=piece,
            layer_elements=largest_layer,
            layer_grad_elements=max((r.num_elements for r in of_layers), default=0),
            weight_grad_elements=max(
                (p.num_elements for r in of_layers for p in r.params), default=0
            ),
            state_bytes=states,
            slot_bytes=max(
                size + (0 if record.base is None else piece)
                for record, size in zip(spec.records, states, strict=True)
            ),
            layer_weights_bytes=largest_layer * width if converted else 0,
            largest_trained=max(record.num_elements for record in spec.trained),
            mean_step_tokens=extent.mean_step_tokens,
            num_steps=extent.num_steps,
        )

    @cached_property
    def compute_bytes(self) -> int:
        """Bytes of an element in the compute dtype."""
        return DTYPE_BYTES[self.config.compute_dtype]

    @cached_property
    def boundary_bytes(self) -> int:
        """All layer inputs of one step that backward comes back to."""
        return (self.spec.num_layers - self.spec.first_backward_layer) * self.hidden_bytes

    @cached_property
    def hidden_bytes(self) -> int:
        """The input of one layer, all microbatches of a step."""
        return self.step_tokens * self.spec.hidden_size * self.compute_bytes

    @cached_property
    def microbatch_hidden_bytes(self) -> int:
        """The input of one layer, one microbatch."""
        return self.microbatch_tokens * self.spec.hidden_size * self.compute_bytes

    @cached_property
    def kept_layer_bytes(self) -> int:
        """Activations of every microbatch of a step for one layer; its input is counted apart."""
        saved = self.step_tokens * self.saved_token_bytes + self._masks(self.step_tokens)
        return saved - (self.hidden_bytes if saves_input(self.spec, self.config) else 0)

    @cached_property
    def under_way_bytes(self) -> int:
        """What backward of one layer and microbatch holds at its peak beyond what was saved,
        gradients of weights among it."""
        return self.working_bytes - self._saved_bytes

    @cached_property
    def working_bytes(self) -> int:
        """What a layer that was not kept holds at the peak of its forward and backward."""
        return backward_peak_bytes(
            token_bytes=self._saved_bytes + self.microbatch_tokens * self.under_way_token_bytes,
            largest_grad_bytes=self.weight_grad_elements * self.compute_bytes,
            grad_bytes=self.layer_grad_elements * self.compute_bytes,
            compiled=is_compiled(self.spec, self.config),
        )

    @cached_property
    def _saved_bytes(self) -> int:
        tokens = self.microbatch_tokens
        return tokens * self.saved_token_bytes + self._masks(tokens)

    @cached_property
    def loss_bytes(self) -> int:
        """What the loss of a chunk of tokens holds at its peak."""
        return logits_bytes(self.spec, self.config, self.config.loss_chunk_tokens)

    def layer_peak_bytes(self, placement: Placement) -> int:
        """What layers take on the device at their peak above all that is kept.

        Backward comes to the last layer first, and lets go of what was kept of it: a layer that is
        computed again has the room of those behind it.
        """
        kept = set(placement.keep_layers)
        if len(kept) == self.spec.num_layers:
            return self.under_way_bytes
        last = next(i for i in reversed(range(self.spec.num_layers)) if i not in kept)
        freed = (self.spec.num_layers - 1 - last) * self.kept_layer_bytes
        return max(self.working_bytes - freed, self.under_way_bytes if kept else 0)

    def device_parts(self, placement: Placement) -> dict[str, int]:
        """Bytes on the device, by purpose."""
        config, spec = self.config, self.spec
        table = spec.vocab_size * spec.hidden_size
        waits = placement.waits
        away = [waits.count(tier) for tier in ("host", "nvme")]
        boundary = self.boundary_bytes - sum(away) * self.hidden_bytes
        roads = sum(count > 0 for count in away)
        boundary += roads * NUM_ACTIVATION_BUFFERS * self.microbatch_hidden_bytes
        in_layers = self.layer_peak_bytes(placement)
        return {
            "slots": self._slots(placement),
            "state": self._homes.state(placement, "device", frozen=False),
            "frozen": self._homes.state(placement, "device", frozen=True),
            "cached_weights": sum([self.weight_bytes(i) for i in placement.cached]),
            "gradients": self._homes.gradients(placement, on_device=True),
            "grad_buffers": self._grad_buffers,
            "table": table * self.compute_bytes,
            "table_grad": table * 4 if spec.trains_table else 0,
            "layer_weights": self.layer_weights_bytes,
            "layer_grad": self.layer_grad_elements * 4,
            "boundary_activations": boundary + 2 * self.hidden_bytes,
            "layer_activations": in_layers,
            "kept_activations": len(placement.keep_layers) * self.kept_layer_bytes,
            "kept_weights": self._kept_weights(placement),
            # The loss is taken while no layer is computed: beyond what a layer takes, that is.
            "loss_chunk": max(0, self.loss_bytes - in_layers),
            "samples": self._samples,
            "allocator": self._loose,
            "runtime": RUNTIME_BYTES[config.device],
        }

    def host_parts(self, placement: Placement) -> dict[str, int]:
        """Bytes of host memory besides the device's, by purpose; whole pages."""
        parked = len(placement.parked("host")) * self.hidden_bytes
        ring = NUM_PINNED_BUFFERS if placement.parked("nvme") else 0
        return {
            "staging": placement.num_staging * self.slot_bytes,
            "state": self._homes.state(placement, "host", frozen=False),
            "frozen": self._homes.state(placement, "host", frozen=True),
            "gradients": self._homes.gradients(placement, on_device=False),
            "gradient_sums": self._gradient_sums(placement),
            "boundary_activations": round_up(parked, PAGE_BYTES),
            "activation_ring": ring * round_up(self.microbatch_hidden_bytes, PAGE_BYTES),
        }

    def scratch_bytes(self, placement: Placement) -> int:
        """Bytes on the volumes for layer inputs: those of each microbatch take whole pages."""
        pages = NUM_ANSWERS[self.config.objective] * self.config.batch_rows * PAGE_BYTES
        return len(placement.parked("nvme")) * (round_up(self.hidden_bytes, PAGE_BYTES) + pages)

    def device(self, placement: Placement) -> int:
        """Bytes on the device; a plan asks four times for each placement that it weighs."""
        known = self._known[0].get(placement)
        if known is None:
            known = self._known[0][placement] = sum(self.device_parts(placement).values())
        return known

    def host(self, placement: Placement) -> int:
        """Bytes of host memory."""
        known = self._known[1].get(placement)
        if known is None:
            known = self._known[1][placement] = sum(self.host_parts(placement).values())
        return known

    def _masks(self, num_tokens: int) -> int:
        """Masks of packed microbatches, as flags and as numbers, where a layer needs them."""
        if packed_way(self.spec, self.config) != "mask":
            return 0
        return num_tokens * self.microbatch_tokens * (1 + self.compute_bytes)

    def _slots(self, placement: Placement) -> int:
        """The ring's device half; none when every record lives on the device."""
        streams = set(placement.tiers) != {"device"}
        return placement.num_slots * self.slot_bytes if streams else 0

    def _kept_weights(self, placement: Placement) -> int:
        """Weights of kept layers that outlive their slot; a resident bf16 record serves itself."""
        copies = len(placement.keep_layers)
        if not self.layer_weights_bytes:
            copies = self._homes.kept_elsewhere(placement)
        kept = copies * self.layer_elements * self.compute_bytes
        if self.config.compute_dtype == "float32":  # what lies beside a layer is joined anew
            beside = max((record.num_elements for record in self.spec.beside.values()), default=0)
            kept += (len(placement.keep_layers) + 1) * beside * self.compute_bytes
        return kept

    def _gradient_sums(self, placement: Placement) -> int:
        """fp32 sums of the layers' gradients, where microbatches come one after the other."""
        if placement.order == "layers":
            return 0
        return sum(sum_bytes(layer) for layer in self.spec.of_kind("layer"))

    def weight_bytes(self, record: int) -> int:
        """Bytes of a record's weights as compute reads them, which lie first in it."""
        return self._weight_bytes[record]

    @cached_property
    def _weight_bytes(self) -> list[int]:
        layouts = [state_record(one, self.config.state_format) for one in self.spec.records]
        return [cached_weight_bytes(one, self.config.compute_dtype) for one in layouts]

    @cached_property
    def _known(self) -> tuple[dict[Placement, int], dict[Placement, int]]:
        return {}, {}  # bytes on the device, and of host memory

    @cached_property
    def _homes(self) -> HomeSums:
        return HomeSums(self.spec, self.state_bytes, self.grad_bytes)

    @cached_property
    def _samples(self) -> int:
        return sample_bytes(self.spec, self.config)

    @cached_property
    def _loose(self) -> int:
        """What the device's allocator holds that nobody uses; the slab's parts are of one piece."""
        return loose_bytes(self.config, layer_bytes=self.working_bytes, loss_bytes=self.loss_bytes)

    @cached_property
    def _grad_buffers(self) -> int:
        one = round_up(self.largest_trained * self.compute_bytes, _DEVICE_ALIGNMENT)
        return NUM_GRAD_BUFFERS[self.config.device] * one


def sum_bytes(record: RecordLayout) -> int:
    """Bytes of the fp32 sum of a record's gradient, in whole pages."""
    return round_up(4 * record.num_elements, PAGE_BYTES)


def kept_grad_bytes(config: TrainConfig, record: RecordLayout) -> int:
    """Bytes of a kept gradient; the embedding's accumulator itself keeps its gradient."""
    if record.kind == "embedding" or record.base is not None:
        return 0
    return round_up(record.num_elements * DTYPE_BYTES[config.compute_dtype], PAGE_BYTES)
