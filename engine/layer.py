"""Forward and backward of one resident layer: transformers' own module, bound to slot views."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from .config import Compile
from .hf_config import build_config
from .model import ModelSpec, RecordLayout

_LAYER_PREFIX = "model.layers."

Weights = Mapping[str, Tensor]


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

    Rows are padded on the right and attention is causal, so no real token can attend to padding
    and no attention mask is needed; padded positions compute values that nothing reads.
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
        config._attn_implementation = "sdpa"
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

    def positions(self, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Rotary cosines and sines of positions 0 … num_tokens - 1, shape (1, tokens, head)."""
        position_ids = torch.arange(num_tokens, device=self._device)[None]
        like = torch.empty((1, 1, 1), dtype=self._dtype, device=self._device)
        cos, sin = self._rotary(like, position_ids)
        return cos, sin

    def forward(self, weights: Weights, hidden: Tensor, positions: tuple[Tensor, Tensor]) -> Tensor:
        """Output of the layer for `hidden`, shape (rows, tokens, hidden)."""
        return self._call(dict(weights), hidden, *positions)

    def forward_only(
        self, weights: Weights, hidden: Tensor, positions: tuple[Tensor, Tensor]
    ) -> Tensor:
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
        self, weights: dict[str, Tensor], hidden: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        arguments: dict[str, Any] = {"position_embeddings": (cos, sin), "attention_mask": None}
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
