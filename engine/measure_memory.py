"""How much memory calibration takes: no more than the run that it is made for. Pure, no torch."""

from collections.abc import Callable

from headrace.storage import DTYPE_BYTES

from .config import TrainConfig
from .model import ModelSpec, RecordLayout
from .packing import RowLengths
from .placement import least_placement
from .saved import saved_token_bytes, under_way_token_bytes
from .sizes import RUNTIME_BYTES, Sizes
from .state_record import state_padded_bytes
from .strategies import with_strategy
from .working import MIB, logits_bytes

# A processor's caches hold what it did last: a layer is timed as a step comes to it, after others,
# and records are updated in turn, as slots are.
COPIES = {"cpu": 4, "cuda": 1}  # of a layer
RECORDS = 3
_MOST_BYTES = 2**31  # of all of them; larger ones pass through no cache
_STATE_BYTES = 12  # of a parameter, as it lies about a layer's visit
_SUM_BYTES = 4
_BESIDE_BYTES = 64 * MIB  # beyond what a run takes, in which torch's own buffers come too


def measuring_bytes(spec: ModelSpec, config: TrainConfig, lengths: RowLengths) -> int:
    """Host memory in bytes that calibration for a run of these rows may take.

    That is what the run takes itself where it takes least, so that whatever the plan then is, the
    process stays within it and 100 MiB. Raises StrategyConflict.
    """
    config = with_strategy(spec, config)
    sizes = Sizes.of(spec, config, lengths.longest, lengths)
    least = least_placement(sizes)
    run = sizes.host(least)
    if config.device == "cpu":  # both tiers are the same memory
        run += sizes.device(least) - RUNTIME_BYTES["cpu"]
    return run + _BESIDE_BYTES


class MeasuringSizes:
    """What timing a model's layers takes, and how much of it fits into `most_bytes`.

    None: no limit. On a GPU all of it is on the device, and there is none.
    """

    def __init__(self, spec: ModelSpec, config: TrainConfig, most_bytes: int | None) -> None:
        self._spec, self._config = spec, config
        self._most_bytes = most_bytes if config.device == "cpu" else None
        self._width = DTYPE_BYTES[config.compute_dtype]
        self._elements = sum(record.num_elements for record in layer_records(spec))

    def num_copies(self, tokens: int, head_tokens: int) -> int:
        """Of a layer's weights, to be timed in turn with microbatches of so many tokens."""
        most = COPIES[self._config.device]
        if _STATE_BYTES * self._elements >= _MOST_BYTES:
            return 1
        peak = max(self._pass_bytes(tokens, 1), self._head_bytes(head_tokens))
        return self._most(most, lambda copies: self._copies_bytes(copies) + peak)

    def num_kept(self, copies: int, tokens: int) -> int:
        """Layers whose activations are kept at once, of microbatches of so many tokens."""
        layers = self._copies_bytes(copies)
        return self._most(copies, lambda kept: layers + self._pass_bytes(tokens, kept))

    def fits(self, copies: int, tokens: int) -> bool:
        """Whether a layer can be timed with so many tokens."""
        needed = self._copies_bytes(copies) + self._pass_bytes(tokens, 1)
        return self._most_bytes is None or needed <= self._most_bytes

    def num_records(self, layout: RecordLayout) -> int:
        """Of those that are updated in turn."""
        state = state_padded_bytes(layout, self._config.state_format)
        if RECORDS * state > _MOST_BYTES:
            return 1
        gradient = _SUM_BYTES + (self._width if self._width != _SUM_BYTES else 0)
        each = state + gradient * layout.num_elements
        kept = _SUM_BYTES * layout.num_elements  # weights that are joined anew
        return self._most(RECORDS, lambda records: records * each + kept)

    def _most(self, most: int, needed: Callable[[int], int]) -> int:
        limit = self._most_bytes
        fitting = (n for n in range(most, 1, -1) if limit is None or needed(n) <= limit)
        return next(fitting, 1)

    def _copies_bytes(self, copies: int) -> int:
        """Weights, the gradients of one visit and of the one before, and what lies about."""
        around = _STATE_BYTES + _SUM_BYTES if copies > 1 else 0
        return self._elements * (self._width * (copies + 2) + around)

    def _pass_bytes(self, tokens: int, kept: int) -> int:
        """Activations of `kept` layers, what backward of one holds, inputs and their gradients."""
        saved = saved_token_bytes(self._spec, self._config, tokens)
        under_way = under_way_token_bytes(self._spec, self._config, tokens)
        inputs = (2 + kept) * self._spec.hidden_size * self._width
        return tokens * (kept * saved + under_way + inputs)

    def _head_bytes(self, tokens: int) -> int:
        """The table, its gradient, and logits."""
        spec = self._spec
        table = spec.vocab_size * spec.hidden_size
        gradient = _SUM_BYTES if spec.trains_table else 0
        return table * (self._width + gradient) + logits_bytes(spec, self._config, tokens)


def layer_records(spec: ModelSpec) -> list[RecordLayout]:
    """The first layer's record, and what lies beside it."""
    layout = spec.of_kind("layer")[0]
    return [layout, *filter(None, [spec.beside.get(layout.name)])]
