"""Forward and backward of one resident layer: transformers' own module, bound to slot views."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from . import attention
from .attention import Documents
from .config import Compile
from .hf_config import build_config
from .model import ModelSpec, RecordLayout

_LAYER_PREFIX = "model.layers."
_STRETCHED = ("dynamic", "longrope")  # kinds of rotary positions that depend on a row's length

Weights = Mapping[str, Tensor]
Positions = tuple[Tensor, Tensor, Documents | None]  # rotary cosines and sines; packed documents


def param_views(flat: Tensor, layout: RecordLayout) -> dict[str, Tensor]:
    """The parameters of a record as shaped views of a flat component, by their short names."""
    return {
        _short_name(param.name): flat[param.offset : param.offset + param.num_elements].view(
            param.shape
        )
        for param in layout.params
    }


def _short_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `mlp.up_proj.weight`; others keep their last part."""
    if name.startswith(_LAYER_PREFIX):
        return name.removeprefix(_LAYER_PREFIX).split(".", 1)[1]
    return name.rsplit(".", 1)[-1]


class LayerModule:
    """The decoder layer and the final norm of a model, built once without memory of their own.

    Attention is causal and padding comes last, behind a row or as a document of its own, so no real
    token attends to it; padded positions compute values that nothing reads.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        device: torch.device,
        dtype: torch.dtype,
        compile: Compile = "off",
    ) -> None:
        config = build_config(spec, dtype=dtype)
        config._attn_implementation = attention.NAME
        with torch.device("meta"):
            self._layer = LlamaDecoderLayer(config, layer_idx=0)
            self._norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        for module in (self._layer, self._norm):
            module.requires_grad_(False)
            module.eval()
        self._rotary = LlamaRotaryEmbedding(config).to(device)
        self._device = device
        self._dtype = dtype
        self._compiled = compile != "off"
        self._call: Callable[..., Tensor] = self._apply
        if self._compiled:
            self._call = torch.compile(self._apply, dynamic=compile == "dynamic")

    def positions(self, num_tokens: int, lengths: Tensor | None = None) -> Positions:
        """What tells tokens their places: rotary cosines and sines, (1, tokens, head).

        `lengths` of packed documents (int64, on the host) start the places again with each.
        """
        documents = None if lengths is None else Documents.of(lengths, self._device)
        places = torch.arange(num_tokens)[None] if documents is None else documents.position_ids()
        pieces: Sequence[Tensor] = [places]
        if documents is not None and self._rotary.rope_type in _STRETCHED:
            pieces = torch.split(places, documents.present(), dim=1)
        like = torch.empty((1, 1, 1), dtype=self._dtype, device=self._device)
        turned = [self._rotary(like, piece.to(self._device)) for piece in pieces]
        cos, sin = (torch.cat(parts, dim=1) for parts in zip(*turned, strict=True))
        return cos, sin, documents

    def forward(self, weights: Weights, hidden: Tensor, positions: Positions) -> Tensor:
        """Output of the layer for `hidden`, shape (rows, tokens, hidden)."""
        return self._call(dict(weights), hidden, *positions)

    def forward_only(self, weights: Weights, hidden: Tensor, positions: Positions) -> Tensor:
        """The same output, to the bit, with nothing saved for a backward pass.

        A compiled layer is one callable for forward and recompute: compiled without gradients it
        would fuse differently, so here its graph is built and dropped.
        """
        if not self._compiled:
            with torch.no_grad():
                return self.forward(weights, hidden, positions)
        with torch.enable_grad():
            inputs = own_version(hidden).requires_grad_()
            return self.forward(trainable(weights), inputs, positions).detach()

    def _apply(
        self,
        weights: dict[str, Tensor],
        hidden: Tensor,
        cos: Tensor,
        sin: Tensor,
        documents: Documents | None,
    ) -> Tensor:
        arguments: dict[str, Any] = {
            "position_embeddings": (cos, sin),
            "attention_mask": None,
            "documents": documents,
        }
        output = functional_call(self._layer, weights, (hidden,), arguments)
        assert isinstance(output, Tensor)
        return output

    def norm(self, weight: Tensor, hidden: Tensor) -> Tensor:
        """The model's final norm, applied to the last dimension."""
        output = functional_call(self._norm, {"weight": weight}, (hidden,))
        assert isinstance(output, Tensor)
        return output


def own_version(view: Tensor) -> Tensor:
    """The same memory with a version counter of its own, detached.

    Views of the slots share one counter, so a copy into another slot would make autograd believe
    that these weights had changed. The ring guarantees that they do not.
    """
    return view.data


def trainable(weights: Weights) -> Weights:
    """The weights as leaves that gradients are taken of."""
    return {name: own_version(weight).requires_grad_() for name, weight in weights.items()}


def backward(output: Tensor, inputs: Tensor, weights: Weights, grad: Tensor) -> list[Tensor]:
    """Gradients of `inputs` and of each weight, in that order, given the gradient of `output`."""
    return list(torch.autograd.grad(output, [inputs, *weights.values()], grad))
