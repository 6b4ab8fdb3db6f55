"""How many tokens, in how many microbatches, pass through the model in a step. Pure, no torch."""

import math
from dataclasses import dataclass

from .config import NUM_ANSWERS
from .sizes import Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """What passes through the model in one step. `tokens` count the padding, too; `row_tokens` are
    those that attend to each other, of preferences an answer's."""

    tokens: int
    microbatches: int
    row_tokens: int
    trained_tokens: int

    @classmethod
    def of(
        cls, sizes: Sizes, *, row_tokens: float | None = None, trained_share: float = 1.0
    ) -> "StepLoad":
        """The largest step, or one of rows of `row_tokens` tokens, padding included."""
        config = sizes.config
        tokens = sizes.step_tokens
        if row_tokens is not None:
            tokens = min(tokens, math.ceil(config.batch_rows * row_tokens))
        microbatches = math.ceil(config.batch_rows / config.microbatch_rows)
        if config.packing == "on":
            microbatches = math.ceil(tokens / sizes.microbatch_tokens)
        return cls(
            tokens=tokens,
            microbatches=microbatches,
            row_tokens=max(1, tokens // (config.batch_rows * NUM_ANSWERS[config.objective])),
            trained_tokens=math.ceil(tokens * trained_share),
        )
