"""What a model is made of: every tensor, its shape, and the record it lives in. Pure, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt
from typing import Any, Literal, get_args

ELEMENT_ALIGNMENT = 256  # parameters start on multiples: 256 bytes even at one byte per element
COMPONENT_ALIGNMENT = 2048  # a component of that many bfloat16 elements fills whole pages

RecordKind = Literal["embedding", "layer", "norm", "head", "beside"]
CodedFormat = Literal["nf4", "int8"]  # of the matrices of layers; the rest is bfloat16
CODED_FORMATS = ("nf4", "int8")
BaseFormat = Literal["bfloat16", "float32", "nf4", "int8"]
CODE_BLOCK = 64  # coded weights that share a scale; divides the alignment of parameters

# The checkpoint's names, the same in every family that is known here.
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"
LAYERS = "model.layers."
EXPERTS = ".experts."  # in the name of every weight of a mixture's experts
ROUTER = ".gate.weight"  # how the name of a mixture's router ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamSpec:
    """One parameter, or a run of whole rows of it, inside a record's flat component.

    `name` is the checkpoint's name; `shape` the shape of the piece held here; `offset` counts
    elements from the start of the component; the piece begins at row `row_start` of `full_shape`.
    """

    name: str
    shape: tuple[int, ...]
    offset: int
    full_shape: tuple[int, ...]
    row_start: int = 0

    @property
    def num_elements(self) -> int:
        """Elements held here."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLayout:
    """The parameters of one record and the length of its flat components, in elements.

    `num_elements` includes alignment gaps; gaps are zero in weights, moments and gradients. A
    record with a `base` is frozen: weights alone, in that format, read and never written. What is
    trained of a frozen layer lies in a record of kind `beside`, which names the `layer`'s record.
    """

    name: str
    kind: RecordKind
    params: tuple[ParamSpec, ...]
    num_elements: int
    base: BaseFormat | None = None
    layer: str | None = None

    @property
    def num_params(self) -> int:
        """Elements, without alignment gaps."""
        return sum(param.num_elements for param in self.params)

    @property
    def num_matrix_elements(self) -> int:
        """Elements before the first vector (norm or bias); a layer's matrices come first, but for
        a router, which comes last: what it chooses must not depend on how matrices are stored."""
        vectors = (param.offset for param in self.params if len(param.full_shape) == 1)
        return next(vectors, self.num_elements)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What layers of one model may differ in: how far back a token attends.

    `name` is transformers' (an entry of `layer_types`); `window` counts the tokens that a token
    attends to, itself included; None: all up to itself.
    """

    name: str
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSpec:
    """The experts of a mixture: each token passes `per_token` of `count` small MLPs.

    In the checkpoint they are `block`.experts.0, .1 … with `projections`: gate, up and down, in a
    layer whose router is `block`.gate. `intermediate_size` is that of one expert. `balance` is the
    coefficient of the loss that spreads tokens over experts (balance.py); 0 for none.
    """

    count: int
    per_token: int
    intermediate_size: int
    block: str
    projections: tuple[str, str, str]
    balance: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """The adapters of a run. `targets` are those of peft: "all-linear", one regular expression that
    the whole name of a module matches, or last parts of names."""

    rank: int
    alpha: float
    rslora: bool
    targets: tuple[str, ...]

    @property
    def scaling(self) -> float:
        """What the product of both matrices is multiplied by."""
        return self.alpha / (sqrt(self.rank) if self.rslora else self.rank)


@dataclass(frozen=True, kw_only=True)  # no slots: what is summed over records is summed once
class ModelSpec:
    """A supported model, from its config alone.

    `config` is the checkpoint's config.json as read. `records` is in order: `embed.0` …, then
    `layers.0` …, `norm`, and, when the head is not tied to the embedding, `head.0` …. Tables are
    cut into pieces of whole rows, so that no record is larger than `max_record_elements`.
    What is frozen and what is trained beside it, `method_spec` says; adapters come behind the rest.
    `layer_kinds` has one entry a layer. Embeddings are multiplied by `embedding_scale`; a softcap
    c bounds scores x of the attention, or the logits, as c * tanh(x / c). `is_bfloat16`: every
    weight is stored so. With `experts`, `intermediate_size` is what one token passes in a layer.
    """

    family: str
    config: Mapping[str, Any]
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int
    tied: bool
    layer_kinds: tuple[LayerKind, ...]
    records: tuple[RecordLayout, ...]
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    is_bfloat16: bool = False
    experts: ExpertSpec | None = None
    lora: Lora | None = None

    @cached_property
    def num_params(self) -> int:
        """Elements of all parameters; a tied table counts once."""
        return sum(record.num_params for record in self.records)

    @cached_property
    def num_trained_params(self) -> int:
        """Elements of the parameters that are trained."""
        return sum(record.num_params for record in self.trained)

    @cached_property
    def trained(self) -> tuple[RecordLayout, ...]:
        """The records that are trained, in order."""
        return tuple(record for record in self.records if record.base is None)

    @cached_property
    def trained_indices(self) -> frozenset[int]:
        """The places in `records` of those that are trained."""
        return frozenset(i for i, record in enumerate(self.records) if record.base is None)

    @cached_property
    def beside(self) -> dict[str, RecordLayout]:
        """What is trained beside a frozen layer, by the name of the layer's record."""
        return {record.layer: record for record in self.records if record.layer is not None}

    @cached_property
    def trains_table(self) -> bool:
        """Whether the embedding, or an untied head, is trained."""
        return any(record.kind in ("embedding", "head") for record in self.trained)

    @cached_property
    def first_backward_layer(self) -> int:
        """The lowest layer that the backward pass comes to: nothing below it is trained."""
        if any(record.base is None for record in self.of_kind("embedding")):
            return 0
        beside = self.beside
        for i, layer in enumerate(self.of_kind("layer")):
            if layer.base is None or layer.name in beside:
                return i
        return self.num_layers

    def of_kind(self, kind: RecordKind) -> tuple[RecordLayout, ...]:
        """The records of that kind, in order."""
        return self._by_kind.get(kind, ())

    @cached_property
    def indices(self) -> dict[RecordKind, list[int]]:
        """The places in `records` of those of each kind, in order."""
        found: dict[RecordKind, list[int]] = {kind: [] for kind in get_args(RecordKind)}
        for i, record in enumerate(self.records):
            found[record.kind].append(i)
        return found

    @cached_property
    def _by_kind(self) -> dict[RecordKind, tuple[RecordLayout, ...]]:
        kinds = {record.kind for record in self.records}
        return {kind: tuple(r for r in self.records if r.kind == kind) for kind in kinds}
