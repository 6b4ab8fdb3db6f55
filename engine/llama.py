"""The Llama family: its config, and every tensor of it, cut into records. Pure, no torch."""

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import Any

from headrace.storage import round_up

from .llama_config import check_values
from .model import COMPONENT_ALIGNMENT, ELEMENT_ALIGNMENT, ModelSpec, ParamSpec, RecordLayout
from .model_files import ModelError

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"

MAX_COUNT = 2**31 - 1  # of anything that a config counts
MAX_RECORDS = 20_000  # far above any model; a config that lies must not fill the memory

Shape = tuple[int, ...]


def llama_spec(config: Mapping[str, Any], max_record_elements: int) -> ModelSpec:
    """The layout of a Llama from its config; ModelError when a value is missing or impossible.

    Absent optional values mean what transformers' LlamaConfig means by their absence.
    """
    hidden = _count(config, "hidden_size")
    heads = _count(config, "num_attention_heads")
    sizes = {
        "num_layers": _count(config, "num_hidden_layers"),
        "hidden_size": hidden,
        "intermediate_size": _count(config, "intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": _count(config, "num_key_value_heads", heads),
        "head_dim": _count(config, "head_dim", hidden // heads),
        "vocab_size": _count(config, "vocab_size"),
        "max_positions": _count(config, "max_position_embeddings", 2048),
    }
    _check_heads(config, sizes)
    check_values(config)
    tied = _flag(config, "tie_word_embeddings")
    layer = _layer_shapes(
        sizes, attention_bias=_flag(config, "attention_bias"), mlp_bias=_flag(config, "mlp_bias")
    )
    records = tuple(_records(sizes, layer, tied=tied, max_record_elements=max_record_elements))
    return ModelSpec(family="llama", config=dict(config), tied=tied, records=records, **sizes)


def _count(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        value = default
    if type(value) is not int or not 1 <= value <= MAX_COUNT:
        raise ModelError(f"config: {key} is {value!r}; wanted a whole number from 1 to {MAX_COUNT}")
    return value


def _flag(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelError(f"config: {key} is {value!r}; wanted true or false")
    return bool(value)


def _check_heads(config: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    heads, kv_heads, head_dim = sizes["num_heads"], sizes["num_kv_heads"], sizes["head_dim"]
    if heads % kv_heads:
        raise ModelError(
            f"config: num_attention_heads ({heads}) is no multiple of "
            f"num_key_value_heads ({kv_heads})"
        )
    if config.get("head_dim") is None and sizes["hidden_size"] % heads:
        raise ModelError(
            f"config: hidden_size ({sizes['hidden_size']}) is no multiple of "
            f"num_attention_heads ({heads}), and there is no head_dim"
        )
    if head_dim % 2:
        raise ModelError(f"config: head_dim is {head_dim}; rotary positions want an even number")


def _layer_shapes(
    sizes: Mapping[str, int], *, attention_bias: bool, mlp_bias: bool
) -> list[tuple[str, Shape]]:
    """Names within a layer and shapes, in the order of LlamaDecoderLayer.named_parameters()."""
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    queries = sizes["num_heads"] * sizes["head_dim"]
    keys = sizes["num_kv_heads"] * sizes["head_dim"]

    def linear(name: str, rows: int, columns: int, bias: bool) -> Iterator[tuple[str, Shape]]:
        yield f"{name}.weight", (rows, columns)
        if bias:
            yield f"{name}.bias", (rows,)

    return [
        *linear("self_attn.q_proj", queries, hidden, attention_bias),
        *linear("self_attn.k_proj", keys, hidden, attention_bias),
        *linear("self_attn.v_proj", keys, hidden, attention_bias),
        *linear("self_attn.o_proj", hidden, queries, attention_bias),
        *linear("mlp.gate_proj", inner, hidden, mlp_bias),
        *linear("mlp.up_proj", inner, hidden, mlp_bias),
        *linear("mlp.down_proj", hidden, inner, mlp_bias),
        ("input_layernorm.weight", (hidden,)),
        ("post_attention_layernorm.weight", (hidden,)),
    ]


def _records(
    sizes: Mapping[str, int],
    layer: list[tuple[str, Shape]],
    *,
    tied: bool,
    max_record_elements: int,
) -> Iterator[RecordLayout]:
    params, layer_elements = _pack(layer)
    limit = max(max_record_elements, layer_elements)
    table = (sizes["vocab_size"], sizes["hidden_size"])
    _check_num_records(sizes, -(-sizes["vocab_size"] // _rows_in(table, limit)))
    yield from _table_records("embed", "embedding", EMBEDDING, table, limit)
    for i in range(sizes["num_layers"]):
        named = tuple(
            ParamSpec(
                name=f"model.layers.{i}.{param.name}",
                shape=param.shape,
                offset=param.offset,
                full_shape=param.full_shape,
            )
            for param in params
        )
        yield RecordLayout(
            name=f"layers.{i}", kind="layer", params=named, num_elements=layer_elements
        )
    norm, norm_elements = _pack([(NORM, (sizes["hidden_size"],))])
    yield RecordLayout(name="norm", kind="norm", params=norm, num_elements=norm_elements)
    if not tied:
        yield from _table_records("head", "head", HEAD, table, limit)


def _check_num_records(sizes: Mapping[str, int], num_pieces: int) -> None:
    """Judged before they are made: the config may claim what no file holds."""
    if sizes["num_layers"] + num_pieces > MAX_RECORDS:
        raise ModelError(
            f"config: num_hidden_layers {sizes['num_layers']} and vocab_size "
            f"{sizes['vocab_size']} make {sizes['num_layers'] + num_pieces} records of this size; "
            f"wanted at most {MAX_RECORDS}"
        )


def _rows_in(table: Shape, limit: int) -> int:
    """Rows of a table that fit into a record of so many elements; at least one."""
    return max(1, limit // table[1])


def _pack(shapes: Iterable[tuple[str, Shape]]) -> tuple[tuple[ParamSpec, ...], int]:
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
