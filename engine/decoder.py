"""A decoder's tensors cut into records, the same way for every family. Pure, no torch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from headrace.storage import round_up

from .config_values import Config, count
from .model import (
    COMPONENT_ALIGNMENT,
    ELEMENT_ALIGNMENT,
    EMBEDDING,
    HEAD,
    LAYERS,
    NORM,
    ROUTER,
    LayerKind,
    ModelSpec,
    ParamSpec,
    RecordLayout,
)
from .model_files import ModelError

TABLE_SHARE = 3  # exact pieces of a third take no larger slots than layers of 4 bytes an element
MAX_RECORDS = 20_000  # far above any model; a config that lies must not fill the memory

Shape = tuple[int, ...]
Tensors = Sequence[tuple[str, Shape]]  # names within a layer, in the order of transformers


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSizes:
    """The sizes that every decoder has."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int

    @property
    def queries(self) -> int:
        """Width of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads, which is that of all value heads."""
        return self.num_kv_heads * self.head_dim


def read_sizes(
    config: Config,
    *,
    shares_heads: bool = False,
    divides_hidden: bool = True,
    max_positions: int | None = None,
) -> DecoderSizes:
    """The sizes that a config declares; ModelError when one is missing or impossible.

    `shares_heads`: the number of key heads may be absent, and is that of the queries then.
    `divides_hidden`: so may the size of a head. `max_positions` is the default of an absent one.
    """
    hidden, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    sizes = DecoderSizes(
        num_layers=count(config, "num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=count(config, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=count(config, "num_key_value_heads", heads if shares_heads else None),
        head_dim=count(config, "head_dim", hidden // heads if divides_hidden else None),
        vocab_size=count(config, "vocab_size"),
        max_positions=count(config, "max_position_embeddings", max_positions),
    )
    _check_heads(config, sizes)
    _check_num_records(sizes)
    return sizes


def _check_heads(config: Config, sizes: DecoderSizes) -> None:
    heads, kv_heads = sizes.num_heads, sizes.num_kv_heads
    if heads % kv_heads:
        raise ModelError(
            f"config: num_attention_heads ({heads}) is no multiple of "
            f"num_key_value_heads ({kv_heads})"
        )
    if config.get("head_dim") is None and sizes.hidden_size % heads:
        raise ModelError(
            f"config: hidden_size ({sizes.hidden_size}) is no multiple of "
            f"num_attention_heads ({heads}), and there is no head_dim"
        )
    if sizes.head_dim % 2:
        raise ModelError(
            f"config: head_dim is {sizes.head_dim}; rotary positions want an even number"
        )


def linear(name: str, rows: int, columns: int, bias: bool = False) -> Iterator[tuple[str, Shape]]:
    """The tensors of a projection."""
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def projections(sizes: DecoderSizes, *, qkv_bias: bool = False, o_bias: bool = False) -> Tensors:
    """Queries, keys, values and output of an attention that has them apart."""
    return [
        *linear("self_attn.q_proj", sizes.queries, sizes.hidden_size, qkv_bias),
        *linear("self_attn.k_proj", sizes.keys, sizes.hidden_size, qkv_bias),
        *linear("self_attn.v_proj", sizes.keys, sizes.hidden_size, qkv_bias),
        *linear("self_attn.o_proj", sizes.hidden_size, sizes.queries, o_bias),
    ]


def gated_mlp(sizes: DecoderSizes, bias: bool = False) -> Tensors:
    """Gate, up and down projection, apart."""
    return [
        *linear("mlp.gate_proj", sizes.intermediate_size, sizes.hidden_size, bias),
        *linear("mlp.up_proj", sizes.intermediate_size, sizes.hidden_size, bias),
        *linear("mlp.down_proj", sizes.hidden_size, sizes.intermediate_size, bias),
    ]


def norms(width: int, *names: str) -> Tensors:
    """Weights of norms over `width`."""
    return [(f"{name}.weight", (width,)) for name in names]


def lay_out(
    family: str,
    config: Config,
    sizes: DecoderSizes,
    layer: Tensors,
    *,
    kinds: Sequence[LayerKind] | None = None,
    layers: Sequence[Tensors] | None = None,
    tied: bool,
    max_record_elements: int,
    **traits: Any,
) -> ModelSpec:
    """The spec of a model whose layers all hold the tensors `layer`, or each those of `layers`.

    Every layer attends to all tokens before it where `kinds` are not given. Tables are cut into
    row pieces of at most `max_record_elements`, or of a third of a layer where that is more.
    `traits` are further fields of ModelSpec.
    """
    each = [layer] * sizes.num_layers if layers is None else layers
    records = tuple(_records(sizes, each, tied=tied, max_record_elements=max_record_elements))
    full = (LayerKind(name="full_attention"),) * sizes.num_layers
    return ModelSpec(
        family=family,
        config=dict(config),
        num_layers=sizes.num_layers,
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.intermediate_size,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        vocab_size=sizes.vocab_size,
        max_positions=sizes.max_positions,
        tied=tied,
        layer_kinds=full if kinds is None else tuple(kinds),
        records=records,
        **traits,
    )


def _records(
    sizes: DecoderSizes, layers: Sequence[Tensors], *, tied: bool, max_record_elements: int
) -> Iterator[RecordLayout]:
    packed = {id(layer): pack(sorted(layer, key=_order)) for layer in layers}
    largest = max(num_elements for _, num_elements in packed.values())
    limit = max(max_record_elements, largest // TABLE_SHARE)
    table = (sizes.vocab_size, sizes.hidden_size)
    _check_num_records(sizes, -(-sizes.vocab_size // _rows_in(table, limit)))
    yield from _table_records("embed", "embedding", EMBEDDING, table, limit)
    for i, layer in enumerate(layers):
        params, num_elements = packed[id(layer)]
        named = tuple(
            ParamSpec(
                name=f"{LAYERS}{i}.{param.name}",
                shape=param.shape,
                offset=param.offset,
                full_shape=param.full_shape,
            )
            for param in params
        )
        yield RecordLayout(
            name=f"layers.{i}", kind="layer", params=named, num_elements=num_elements
        )
    norm, norm_elements = pack([(NORM, (sizes.hidden_size,))])
    yield RecordLayout(name="norm", kind="norm", params=norm, num_elements=norm_elements)
    if not tied:
        yield from _table_records("head", "head", HEAD, table, limit)


def _order(tensor: tuple[str, Shape]) -> int:
    """Vectors behind the matrices, which alone have compact state formats; a router behind all."""
    name, shape = tensor
    return 2 if name.endswith(ROUTER) else int(len(shape) == 1)


def _check_num_records(sizes: DecoderSizes, num_pieces: int = 0) -> None:
    """Judged before they are made: the config may claim what no file holds."""
    if sizes.num_layers + num_pieces > MAX_RECORDS:
        raise ModelError(
            f"config: num_hidden_layers {sizes.num_layers} and vocab_size "
            f"{sizes.vocab_size} make {sizes.num_layers + num_pieces} records of this size; "
            f"wanted at most {MAX_RECORDS}"
        )


def _rows_in(table: Shape, limit: int) -> int:
    """Rows of a table that fit into a record of so many elements; at least one."""
    return max(1, limit // table[1])


def pack(shapes: Iterable[tuple[str, Shape]]) -> tuple[tuple[ParamSpec, ...], int]:
    """Whole tensors one behind the other, each aligned; and the length of the component."""
    params = []
    offset = 0
    for name, shape in shapes:
        params.append(ParamSpec(name=name, shape=shape, offset=offset, full_shape=shape))
        offset = round_up(offset + prod(shape), ELEMENT_ALIGNMENT)
    return tuple(params), round_up(offset, COMPONENT_ALIGNMENT)


def _table_records(
    prefix: str, kind: Any, name: str, shape: tuple[int, int], limit: int
) -> Iterator[RecordLayout]:
    """A table in as few pieces of whole rows as the limit allows, as even as can be."""
    rows, columns = shape
    num_pieces = -(-rows // _rows_in(shape, limit))
    for i in range(num_pieces):
        start, stop = rows * i // num_pieces, rows * (i + 1) // num_pieces
        piece = ParamSpec(
            name=name,
            shape=(stop - start, columns),
            offset=0,
            full_shape=shape,
            row_start=start,
        )
        yield RecordLayout(
            name=f"{prefix}.{i}",
            kind=kind,
            params=(piece,),
            num_elements=round_up(piece.num_elements, COMPONENT_ALIGNMENT),
        )
