"""Bytes that the graph of a layer saves for a token, and of them those that a plain Llama's does
not. Pure, no torch.

Counted from the graphs of the families' decoder layers (`tests/engine/test_saved.py`).
"""

from math import ceil

from headrace.storage import DTYPE_BYTES

from .config import TrainConfig
from .flops import passed_share
from .lora import UP
from .model import LAYERS, ModelSpec

SCORE_BYTES = 8  # of a score that is not fused: what tanh and softmax save, and a cast


def saved_token_bytes(spec: ModelSpec, config: TrainConfig, row_tokens: int) -> int:
    """Bytes that autograd saves in one layer for a token of rows of `row_tokens`.

    `row_tokens` is what attention may hold scores or a mask of at once; 0: of none. In elements of
    the compute dtype: inputs of the two norms and of their scaling, of the projections, queries,
    keys, values and attention output (by document, and joined), and four intermediates; the norms'
    fp32 copies come on top in bf16 compute. A plain Llama's layer has keys and values once, one
    fp32 copy, and without packing one attention output. A compiled layer recomputes what is cheap:
    of it there are the inputs of norms and products, queries, keys, values, what attention makes
    of them, and three intermediates. Layers with experts are not compiled whole and save what
    others do.
    """
    query, key_value = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    width = DTYPE_BYTES[config.compute_dtype]
    attention = attention_bytes(spec, width, row_tokens) + adapter_bytes(spec, width)
    attention += expert_bytes(spec, width)
    if is_compiled(spec, config):
        saved = 4 * spec.hidden_size + 2 * (query + key_value) + 3 * spec.intermediate_size
        saved += compiled_copies(spec, config, row_tokens)
        return saved * width + compiled_norm_bytes(spec, width) + attention
    elements = 6 * spec.hidden_size + 3 * query + 4 * key_value + 4 * spec.intermediate_size
    fp32_norms = 0 if width == 4 else 2 * spec.hidden_size * 4
    if _is_plain(spec):
        elements -= 2 * key_value + (query if config.packing == "off" else 0)
        fp32_norms //= 2
    return elements * width + fp32_norms + norm_bytes(spec) + attention


def saves_input(spec: ModelSpec, config: TrainConfig) -> bool:
    """Whether a layer's input is among what its graph saves: a norm that is not compiled saves no
    input of another dtype than float32, but the copy in it that it makes."""
    return is_compiled(spec, config) or config.compute_dtype == "float32"


def is_compiled(spec: ModelSpec, config: TrainConfig) -> bool:
    """Whether layers are compiled: which experts a token meets, no graph can know."""
    return config.compile != "off" and spec.experts is None


def under_way_token_bytes(spec: ModelSpec, config: TrainConfig, row_tokens: int) -> int:
    """Bytes that a layer's backward holds for a token at its peak, besides what is saved.

    Gradients of what lies between, not of weights: two hidden- and two intermediate-sized tensors,
    and those of attention scores that are not fused.
    """
    width = DTYPE_BYTES[config.compute_dtype]
    gradients = 2 * (spec.hidden_size + spec.intermediate_size) * width
    return gradients + attention_bytes(spec, width, row_tokens)


def norm_bytes(spec: ModelSpec) -> int:
    """Bytes per token that norms beyond Llama's two save: each its input and its scaled input.

    In float32, in which norms compute whatever the compute dtype is.
    """
    return 2 * 4 * sum(norm_widths(spec))


def norm_widths(spec: ModelSpec) -> list[int]:
    """Elements per token of the inputs of norms beyond Llama's two."""
    names = _tensors(spec)
    outer = sum(name.endswith("layernorm.weight") for name in names)
    widths = [spec.hidden_size] * max(0, outer - 2)
    if "self_attn.q_norm.weight" in names:
        widths += [spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim]
    return widths


def compiled_norm_bytes(spec: ModelSpec, width: int) -> int:
    """Bytes per token that norms beyond Llama's two save in a compiled layer: inputs and scales.

    Of one projection with queries, keys and values in it the result is kept whole besides.
    """
    heads = spec.num_heads + spec.num_kv_heads
    scales = 4 * heads if norm_widths(spec) else 0
    joined = "self_attn.qkv_proj.weight" in _tensors(spec)
    beside = 2 * spec.num_kv_heads * spec.head_dim if joined else 0
    return width * (sum(norm_widths(spec)) + beside) + scales


def compiled_copies(spec: ModelSpec, config: TrainConfig, row_tokens: int) -> int:
    """Elements per token that keys and values take, copied for each head of queries, where packed
    rows attend with a mask (`packed_way`) and `attention_bytes` counts none for a window's."""
    masked = config.packing != "off" and row_tokens > 0
    if not masked or _window_masks(spec, row_tokens) or spec.attention_softcap:
        return 0
    return 2 * (spec.num_heads - spec.num_kv_heads) * spec.head_dim


def attention_bytes(spec: ModelSpec, width: int, row_tokens: int) -> int:
    """Bytes per token that attention saves besides Llama's tensors, of `width` bytes an element.

    That is one sum of scores for each head, in float32. Queries that come out of one projection
    with keys and values are copied out of it. A fused attention copies keys and values for each
    head of queries when it is given a mask, and keeps the mask, row_tokens wide. With a softcap
    nothing is fused and every score is saved.
    """
    sums = 4 * (spec.num_heads + 2)  # and the two norms' scales
    apart = (spec.num_heads - spec.num_kv_heads) * spec.head_dim
    joined = apart * width if "self_attn.qkv_proj.weight" in _tensors(spec) else 0
    if not (_window_masks(spec, row_tokens) or spec.attention_softcap):
        return sums + joined
    copied = 2 * apart
    scores = SCORE_BYTES * spec.num_heads * row_tokens if spec.attention_softcap else 0
    return sums + joined + (copied + row_tokens) * width + scores


def expert_bytes(spec: ModelSpec, width: int) -> int:
    """Bytes per token that a mixture saves besides its experts' intermediates: what goes into and
    comes out of each expert of a token, where it belongs, and the router's scores and logits."""
    if spec.experts is None:
        return 0
    each = 2 * spec.hidden_size * width + 12 * 8
    return spec.experts.per_token * each + (3 * 4 + width) * spec.experts.count


def adapter_bytes(spec: ModelSpec, width: int) -> int:
    """Bytes per token that adapters save: the narrow product of each, and its wide one on the way.

    The projections' own inputs are counted with the layer. Of experts those are counted that a
    token passes.
    """
    adapters = (record for record in spec.of_kind("beside") if spec.lora is not None)
    widths = []
    for record in adapters:
        ups = [param for param in record.params if param.name.endswith(UP)]
        narrow = sum(up.full_shape[1] * passed_share(spec, up.name) for up in ups)
        widths.append(max(up.full_shape[0] for up in ups) + ceil(narrow))
    return width * max(widths, default=0)


def _is_plain(spec: ModelSpec) -> bool:
    """Whether a layer is Llama's: two norms, projections apart, no experts, scores unbounded."""
    joined = "self_attn.qkv_proj.weight" in _tensors(spec)
    return not (norm_widths(spec) or joined or spec.experts or spec.attention_softcap)


def _window_masks(spec: ModelSpec, row_tokens: int) -> bool:
    return any(kind.window is not None and kind.window < row_tokens for kind in spec.layer_kinds)


def _tensors(spec: ModelSpec) -> set[str]:
    return {param.name.removeprefix(f"{LAYERS}0.") for param in spec.of_kind("layer")[0].params}
