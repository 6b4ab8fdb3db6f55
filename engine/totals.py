"""What the loss of some rows came to, as numbers that add up. Pure."""

from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over microbatches.

    The loss is the mean of `loss_sum` over `num_items`: trained tokens, or preferences. Accuracy is
    that of `num_judged` tokens: those trained, or those of chosen answers. `num_trained` counts all
    trained tokens. The rest is of preferences alone: `reward_chosen` and `reward_rejected` are sums
    of beta times what a log-probability has gained on the reference; `num_right` counts those whose
    chosen answer has the greater reward.
    """

    loss_sum: float = 0.0
    num_items: int = 0
    num_correct: int = 0
    num_judged: int = 0
    num_trained: int = 0
    reward_chosen: float | None = None
    reward_rejected: float | None = None
    num_right: int | None = None

    def __add__(self, other: Self) -> Self:
        """Both together; what neither knows stays unknown."""
        sums: dict[str, Any] = {}
        for field in fields(self):
            known = [getattr(one, field.name) for one in (self, other)]
            given = [value for value in known if value is not None]
            sums[field.name] = sum(given) if given else None
        return type(self)(**sums)

    @property
    def loss(self) -> float:
        """The mean loss, 0 of nothing."""
        return self.loss_sum / max(1, self.num_items)

    @property
    def token_accuracy(self) -> float:
        """The share of tokens that were the likeliest."""
        return self.num_correct / max(1, self.num_judged)

    @property
    def rewards(self) -> dict[str, float]:
        """Means over the preferences by the names of reports; empty where there are none."""
        if self.reward_chosen is None or self.reward_rejected is None or self.num_right is None:
            return {}
        count = max(1, self.num_items)
        return {
            "reward_chosen": self.reward_chosen / count,
            "reward_rejected": self.reward_rejected / count,
            "reward_margin": (self.reward_chosen - self.reward_rejected) / count,
            "reward_accuracy": self.num_right / count,
        }
