"""Attention of every decoder layer: causal, by row or by packed document, whatever the family.

transformers' attention modules call `attend` by the name it is registered under, with what is
particular to their layer: scale, sliding window, softcap. Packed documents are attended to in one
of three ways, which the device, the dtype and compilation decide:

- a GPU in half precision: one kernel for all, FlashAttention's of variable length;
- otherwise, as it runs: PyTorch's fused attention, document by document, as if each came alone;
- otherwise, when compiled: with a mask, since a loop would be compiled anew for every step.

Where a text is generated, a row's next tokens attend to what their layer remembers of it, as well.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, library
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from .packed_way import FLASH_MAX_HEAD
from .recall import Recall

NAME = "headrace"
_FLASH_DTYPES = (torch.bfloat16, torch.float16)


class Documents(NamedTuple):
    """Where the documents of a packed microbatch lie, one behind the other.

    `bounds` is int32 on the compute device: document d is tokens bounds[d] to bounds[d + 1].
    `lengths` is int64 on the host, one shorter. Documents at the end may be empty.
    """

    bounds: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, lengths: Tensor, device: torch.device) -> "Documents":
        """Documents of these lengths, int64 on the host."""
        bounds = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        torch.cumsum(lengths, 0, out=bounds[1:])
        return cls(bounds.to(device), lengths)

    def present(self) -> list[int]:
        """Lengths of the documents that are not empty."""
        return [length for length in self.lengths.tolist() if length]

    def position_ids(self) -> Tensor:
        """Each token's place in its document, int64 (1, tokens), on the host."""
        starts = torch.repeat_interleave(self.lengths.cumsum(0) - self.lengths, self.lengths)
        return (torch.arange(len(starts)) - starts)[None]


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    documents: Documents | None = None,
    recall: Recall | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Causal attention, in the form that transformers calls; there is no dropout.

    `query` is (rows, heads, tokens, head), `key` and `value` with fewer heads where they are
    shared; a token sees itself and the `sliding_window - 1` before it. Without `documents` every
    row is one; with them there is one row. With `recall` the tokens are the next ones of rows, all
    of a row or a single one. Returns (rows, tokens, heads, head), contiguous.
    """
    assert attention_mask is None, "what a token sees follows from documents and window alone"
    kind = _Kind(scaling, sliding_window, softcap)
    if recall is not None:
        known = recall.extend(key, value)
        rows = zip(torch.split(query, 1), known, strict=True)
        output = torch.cat([_next(one, *seen, kind) for one, seen in rows]).transpose(1, 2)
    elif documents is None:
        output = _causal(query, key, value, kind).transpose(1, 2)
    elif softcap is None and _has_flash(query):
        flat = [tensor.transpose(1, 2)[0] for tensor in (query, key, value)]
        output = _flash(*flat, *documents, scaling, sliding_window)[0][None]
    elif torch.compiler.is_compiling():
        mask = _same_document(documents.bounds, query.shape[2]) & _band(query, sliding_window)
        output = _masked(query, key, value, mask, kind).transpose(1, 2)
    else:
        present = documents.present()
        pieces = (torch.split(tensor, present, dim=2) for tensor in (query, key, value))
        each = (_causal(q, k, v, kind).transpose(1, 2) for q, k, v in zip(*pieces, strict=True))
        output = torch.cat(list(each), dim=1)
    return output.contiguous(), None


AttentionInterface.register(NAME, attend)


class _Kind(NamedTuple):
    """What is particular to a layer's attention."""

    scale: float
    window: int | None
    softcap: float | None


def _causal(query: Tensor, key: Tensor, value: Tensor, kind: _Kind) -> Tensor:
    """Attention within each row."""
    if kind.softcap is None and (kind.window is None or query.shape[2] <= kind.window):
        return scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=kind.scale, enable_gqa=True
        )
    return _masked(query, key, value, _band(query, kind.window), kind)


def _next(query: Tensor, keys: Tensor, values: Tensor, kind: _Kind) -> Tensor:
    """Attention of a whole row, or of its newest token, to all of the row so far."""
    if query.shape[2] == keys.shape[2]:
        return _causal(query, keys, values, kind)
    assert query.shape[2] == 1, "a row is continued token by token"
    first = 0 if kind.window is None else max(0, keys.shape[2] - kind.window)
    keys, values = keys[:, :, first:], values[:, :, first:]
    if kind.softcap is None:
        return scaled_dot_product_attention(query, keys, values, scale=kind.scale, enable_gqa=True)
    all_of_them = torch.ones((1, keys.shape[2]), dtype=torch.bool, device=keys.device)
    return _masked(query, keys, values, all_of_them, kind)


def _masked(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, kind: _Kind) -> Tensor:
    """Attention where the mask, (tokens of the query, tokens), is true."""
    shared = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(shared, dim=1) for tensor in (key, value))
    if kind.softcap is None:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=kind.scale)
    scores = (query @ key.transpose(2, 3)) * kind.scale
    scores = torch.tanh(scores / kind.softcap) * kind.softcap
    scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype) @ value


def _band(query: Tensor, window: int | None) -> Tensor:
    """Which token sees which by their places alone: itself and those before, within the window."""
    places = torch.arange(query.shape[2], device=query.device)
    distance = places[:, None] - places
    seen = distance >= 0
    return seen if window is None else seen & (distance < window)


def _same_document(bounds: Tensor, num_tokens: int) -> Tensor:
    """Which tokens lie in the same document, (tokens, tokens)."""
    places = torch.arange(num_tokens, device=bounds.device, dtype=bounds.dtype)
    document = torch.searchsorted(bounds, places, right=True)
    return document[:, None] == document


def _has_flash(query: Tensor) -> bool:
    return query.is_cuda and query.dtype in _FLASH_DTYPES and query.shape[-1] <= FLASH_MAX_HEAD


@library.custom_op("headrace::flash_documents", mutates_args=())
def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Tensor,
    lengths: Tensor,
    scale: float,
    window: int | None,
) -> tuple[Tensor, Tensor]:
    """Attention by document, (tokens, heads, head), and its log-sum-exp, (heads, tokens) fp32.

    PyTorch's own `varlen_attn` would be compiled anew for each number of documents and for each
    longest one; behind this name they are looked at as it runs, and always only those that are.
    """
    bounds, longest = _extent(bounds, lengths)
    output, sums, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, bounds, bounds, longest, longest, 0.0, window is None, False,
        scale=scale, window_size_left=_left(window), window_size_right=0,
    )  # fmt: skip
    return output, sums


@library.custom_op("headrace::flash_documents_backward", mutates_args=())
def _flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sums: Tensor,
    bounds: Tensor,
    lengths: Tensor,
    scale: float,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    bounds, longest = _extent(bounds, lengths)
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=query.device)
    unused = torch.empty(0, device=query.device)
    grads: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
        grad, query, key, value, output, sums, bounds, bounds, longest, longest, 0.0,
        window is None, no_dropout, unused,
        scale=scale, window_size_left=_left(window), window_size_right=0,
    )  # fmt: skip
    return grads


def _extent(bounds: Tensor, lengths: Tensor) -> tuple[Tensor, int]:
    """The bounds of the documents that are not empty, and the length of the longest."""
    return bounds[: int(lengths.count_nonzero()) + 1], int(lengths.max())


def _left(window: int | None) -> int:
    """How many tokens before itself a token sees, in FlashAttention's terms; -1: all."""
    return -1 if window is None else window - 1


@_flash.register_fake
def _(query: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    sums = query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)
    return torch.empty_like(query), sums


@_flash_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale, ctx.window = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, bounds, lengths, output, sums = ctx.saved_tensors
    grads = _flash_backward(
        grad, query, key, value, output, sums, bounds, lengths, ctx.scale, ctx.window
    )
    return (*grads, None, None, None, None)


_flash.register_autograd(_backward, setup_context=_save)
