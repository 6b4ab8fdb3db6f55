"""The experts of a mixture, each with weights of its own, under the checkpoint's own names.

transformers stacks the weights of all experts into one tensor, whose gradient is a whole stack
for each expert that a token met; apart, an expert that no token met has no gradient at all.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .model import ExpertSpec


class Routed(NamedTuple):
    """What a router made of the tokens: `logits` (tokens, experts), in the graph of the layer's
    output, and the numbers of the experts `chosen`, int64 (tokens, experts of a token)."""

    logits: Tensor
    chosen: Tensor


class RouterTap:
    """Hands out what a layer's router made of the tokens of the layer's last call."""

    def __init__(self, router: nn.Module) -> None:
        self._routed: Routed | None = None
        router.register_forward_hook(self._keep)

    def _keep(self, router: nn.Module, inputs: Any, outputs: tuple[Tensor, Tensor, Tensor]) -> None:
        logits, _, chosen = outputs
        self._routed = Routed(logits, chosen)

    def take(self) -> Routed:
        """Give it out and let go of it."""
        routed, self._routed = self._routed, None
        assert routed is not None
        return routed


class Experts(nn.Module):
    """Takes the place of a layer's stacked experts: experts 0, 1 … as submodules of that name."""

    def __init__(self, spec: ExpertSpec, hidden_size: int, activation: nn.Module) -> None:
        super().__init__()
        self._projections = spec.projections
        self.act_fn = activation
        shapes = [(hidden_size, spec.intermediate_size)] * 2
        shapes.append((spec.intermediate_size, hidden_size))
        for i in range(spec.count):
            one = nn.Module()
            for name, (columns, rows) in zip(spec.projections, shapes, strict=True):
                one.add_module(name, nn.Linear(columns, rows, bias=False))
            self.add_module(str(i), one)
        self._count = spec.count

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """What the chosen experts make of `hidden` (tokens, hidden), summed with these weights.

        `chosen` and `weights` are (tokens, experts of a token). Experts add up in their order.
        """
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=self._count).tolist()
        output = torch.zeros_like(hidden)
        for i, places in enumerate(torch.split(order, counts)):
            if len(places):
                tokens = places // chosen.shape[1]
                found = self._one(i, hidden[tokens]) * weights.flatten()[places, None]
                output.index_add_(0, tokens, found.to(output.dtype))
        return output

    def _one(self, index: int, hidden: Tensor) -> Tensor:
        expert = self.get_submodule(str(index))
        gate, up, down = (expert.get_submodule(name) for name in self._projections)
        output: Tensor = down(self.act_fn(gate(hidden)) * up(hidden))
        return output


def split_experts(layer: nn.Module, spec: ExpertSpec) -> RouterTap | None:
    """Give a layer experts apart, on the device in force; None for a layer that has none."""
    stacked = getattr(layer.get_submodule("mlp"), "experts", None)
    if stacked is None:
        return None
    block = layer.get_submodule("mlp")
    block.add_module("experts", Experts(spec, stacked.hidden_dim, stacked.act_fn))
    if spec.block != "mlp":
        layer.add_module(spec.block, block)  # the same module under the checkpoint's name, too
    return RouterTap(block.get_submodule("gate"))
