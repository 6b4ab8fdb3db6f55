"""Forward of one resident layer with a graph, and backward through it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .experts import Routed
from .layer import LayerModule, Weights
from .model import EXPERTS, RecordLayout
from .places import Positions

Grads = dict[str, Tensor]


class LayerGraph(NamedTuple):
    """A layer's output for `inputs`, its leaf, and what its router, if any, made of the tokens."""

    inputs: Tensor
    output: Tensor
    routed: Sequence[Routed]


def forward_graph(
    module: LayerModule,
    layout: RecordLayout,
    weights: Weights,
    hidden: Tensor,
    positions: Positions,
) -> LayerGraph:
    """The layer's graph for `hidden` (rows, tokens, hidden), given the `leaves` of its weights."""
    inputs = hidden.detach().requires_grad_()
    routed: list[Routed] = []
    with torch.enable_grad():
        output = module.forward(layout, weights, inputs, positions, routed)
    return LayerGraph(inputs, output, routed)


def backward(
    graph: LayerGraph, weights: Weights, grad: Tensor, routers: Sequence[tuple[Tensor, Tensor]] = ()
) -> tuple[Tensor, Grads]:
    """Gradients of the inputs and of each weight that is a leaf, given the output's gradient.

    `routers` are logits of routers that a loss depends on by itself, each with its gradient. An
    expert that no token met has none.
    """
    leaves = {name: weight for name, weight in weights.items() if weight.requires_grad}
    ends, grads_of_ends = zip((graph.output, grad), *routers, strict=True)
    of_inputs, *found = torch.autograd.grad(
        ends, [graph.inputs, *leaves.values()], grads_of_ends, allow_unused=True
    )
    grads = {name: value for name, value in zip(leaves, found, strict=True) if value is not None}
    missing = leaves.keys() - grads.keys()
    assert all(EXPERTS in name for name in missing), f"no gradient of {sorted(missing)}"
    return of_inputs, grads
