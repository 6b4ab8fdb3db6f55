"""The loss of direct preference optimization, and how it reaches each token.

Rafailov et al., "Direct Preference Optimization" (2023), equation 7: with r = beta * (log p(answer)
- log p_reference(answer)) of both answers and m = r_chosen - r_rejected, the loss of a preference
is -log sigmoid(m). With a share e of preferences that may be the wrong way (label smoothing: E.
Mitchell, "A note on DPO with noisy preferences", 2023) it is -(1 - e) log sigmoid(m) - e log
sigmoid(-m). A log-probability is the sum over the answer's trained tokens. Sums and losses are in
float64.
"""

from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import softplus

from .config import TrainConfig
from .data import Microbatch
from .head import LossSums
from .totals import Totals


@dataclass(slots=True)
class PreferenceSums:
    """Running sums over preferences, float64 on the device: loss, reward of the chosen answers, of
    the rejected ones, and how often the former was greater. `correct` counts likeliest tokens among
    the `num_chosen` of chosen answers; `tokens` those that were trained."""

    sums: Tensor
    correct: Tensor
    tokens: LossSums
    num_pairs: int = field(default=0)
    num_chosen: int = field(default=0)

    @classmethod
    def zero(cls, device: torch.device) -> Self:
        """Nothing seen yet."""
        sums = torch.zeros(4, dtype=torch.float64, device=device)
        correct = torch.zeros((), dtype=torch.int64, device=device)
        return cls(sums, correct, LossSums.zero(device))

    def totals(self) -> Totals:
        """The sums as numbers; waits for the device."""
        loss, chosen, rejected, right = self.sums.tolist()
        return Totals(
            loss_sum=loss,
            num_items=self.num_pairs,
            num_correct=int(self.correct),
            num_judged=self.num_chosen,
            num_trained=self.tokens.num_trained,
            reward_chosen=chosen,
            reward_rejected=rejected,
            num_right=int(right),
        )


@dataclass(frozen=True, slots=True)
class AnswerTokens:
    """Which answer of a microbatch each target is of: 2 i for preference i's chosen one, 2 i + 1
    for its rejected one. `answer` is int64 (targets,); `reference` float64 (preferences, 2), absent
    while it is being computed."""

    answer: Tensor
    num_pairs: int
    num_chosen: int  # targets in chosen answers
    reference: Tensor | None

    @classmethod
    def of(cls, batch: Microbatch, positions: Tensor, device: torch.device) -> Self:
        """Those of a microbatch whose targets are at these flat positions, on the host."""
        if batch.packed:
            answer = torch.bucketize(positions, batch.lengths.cumsum(0), right=True)
        else:
            answer = positions // batch.ids.shape[1]
        reference = batch.reference
        return cls(
            answer.to(device),
            len(batch.row_indices),
            int((answer % 2 == 0).sum()),
            None if reference is None else reference.to(device),
        )

    def log_probs(self, token_log_probs: Tensor) -> Tensor:
        """Sums by answer of the targets' log-probabilities: float64 (preferences, 2)."""
        found = torch.zeros(2 * self.num_pairs, dtype=torch.float64, device=self.answer.device)
        return found.index_add_(0, self.answer, token_log_probs.double()).view(-1, 2)

    def count(self, hits: Tensor, sums: PreferenceSums) -> None:
        """Count the likeliest tokens (flags, one a target) of chosen answers."""
        sums.correct += (hits & (self.answer % 2 == 0)).sum()
        sums.num_chosen += self.num_chosen


def pair_loss(
    log_probs: Tensor, reference: Tensor, config: TrainConfig, sums: PreferenceSums
) -> Tensor:
    """Add the loss of preferences to `sums`; returns -d loss / d log-probability of each answer.

    All tensors are float64 (preferences, 2), chosen answers first.
    """
    beta, smoothing = config.dpo_beta, config.dpo_label_smoothing
    rewards = beta * (log_probs - reference)
    margin = rewards[:, 0] - rewards[:, 1]
    loss = (1 - smoothing) * softplus(-margin) + smoothing * softplus(margin)
    right = (margin > 0).double()
    sums.sums += torch.stack([loss, rewards[:, 0], rewards[:, 1], right]).sum(dim=1)
    sums.num_pairs += len(log_probs)
    weight = beta * ((1 - smoothing) * torch.sigmoid(-margin) - smoothing * torch.sigmoid(margin))
    return torch.stack([weight, -weight], dim=1)
