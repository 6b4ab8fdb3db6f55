"""The loss that spreads a mixture's tokens over its experts, and its gradient in closed form.

Fedus et al., "Switch Transformers" (2021), equations 4 to 6, over all layers at once, as
transformers computes it. Over the R pairs of a layer with experts and a token of the step, let
c_e be how many chose expert e of E, and s_e the sum of the probabilities that routers gave it:

    loss = E * sum_e (c_e / R) * (s_e / R)

Choices have no gradient, so that of one probability is E * c_e / R^2: known when the step's last
layer has been forward, and the same for every token. It does not matter how rows are arranged in
microbatches, since padding counts in none of it, and c_e are whole numbers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .data import Microbatch
from .experts import Routed
from .model import ExpertSpec


def step_balance(
    experts: ExpertSpec | None, microbatches: Sequence[Microbatch], device: torch.device
) -> "Balance | Unbalanced":
    """What counts the routers of one step, if the run balances the model's experts."""
    if experts is None or not experts.balance:
        return Unbalanced()
    return Balance(experts, microbatches, device)


class Unbalanced:
    """Of a model without experts, and of a run that does not balance them."""

    def count(self, m: int, routed: Sequence[Routed]) -> None:
        """Nothing is counted."""

    def gradients(self, m: int, routed: Sequence[Routed]) -> list[tuple[Tensor, Tensor]]:
        """Nothing is added."""
        return []

    def loss(self) -> None:
        """There is none."""


class Balance:
    """What the routers of one step did: counted layer by layer in forward, answered in backward."""

    def __init__(
        self, experts: ExpertSpec, microbatches: Sequence[Microbatch], device: torch.device
    ) -> None:
        self._experts = experts
        self._num_tokens = [batch.num_tokens for batch in microbatches]
        self._is_real = [is_real(batch).to(device) for batch in microbatches]
        self._chosen = torch.zeros(experts.count, dtype=torch.int64, device=device)
        self._probabilities = torch.zeros(experts.count, dtype=torch.float64, device=device)
        self._num_routed = 0  # R

    def count(self, m: int, routed: Sequence[Routed]) -> None:
        """Count what a layer's router, if it has one, made of microbatch `m`."""
        real = self._is_real[m]
        for logits, chosen in routed:
            times = real.long().repeat_interleave(self._experts.per_token)
            self._chosen.index_add_(0, chosen.flatten(), times)
            probabilities = logits.detach().float().softmax(-1) * real[:, None]
            self._probabilities += probabilities.sum(0, dtype=torch.float64)
            self._num_routed += self._num_tokens[m]

    def gradients(self, m: int, routed: Sequence[Routed]) -> list[tuple[Tensor, Tensor]]:
        """The logits of a layer's router for microbatch `m`, each with its gradient of the loss
        times the coefficient, in their dtype; every layer has been counted."""
        return [(one.logits, self._gradient(m, one.logits)) for one in routed]

    def loss(self) -> float:
        """The loss without its coefficient: as many as a token has experts, when all are chosen
        alike. Waits for the device."""
        return float((self._slope() * self._probabilities).sum())

    def _gradient(self, m: int, logits: Tensor) -> Tensor:
        slope = (self._experts.balance * self._slope()).float()
        probabilities = logits.detach().float().softmax(-1)
        mean = (probabilities * slope).sum(-1, keepdim=True)
        grad = probabilities * (slope - mean) * self._is_real[m][:, None]
        return grad.to(logits.dtype)

    def _slope(self) -> Tensor:
        """The loss's derivative by one token's probability of each expert, float64."""
        return self._chosen.double() * (self._experts.count / max(1, self._num_routed) ** 2)


def is_real(batch: Microbatch) -> Tensor:
    """Which of a microbatch's positions hold a token, not padding: bool, in the order of `ids`."""
    if batch.packed:
        return torch.arange(batch.ids.numel()) < batch.num_tokens
    return (torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]).flatten()
