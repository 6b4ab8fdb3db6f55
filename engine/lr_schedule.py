"""The learning rate of a step. Pure."""

import math

from .config import TrainConfig


def rate_at(step: int, *, total_steps: int, config: TrainConfig) -> float:
    """Learning rate of optimizer step `step` (from 1) of `total_steps`.

    Warm-up rises linearly over ceil(warmup_ratio * total_steps) steps and reaches the full rate
    with its last one. Afterwards, with p the share of the remaining steps already done,
    `linear` is 1 - p, `cosine` (1 + cos(pi p)) / 2 and `constant` 1 of the full rate. The last
    step is thus small but not zero.
    """
    warmup = math.ceil(config.warmup_ratio * total_steps)
    if step <= warmup:
        return config.learning_rate * step / warmup
    done = (step - 1 - warmup) / max(1, total_steps - warmup)
    shape = {
        "linear": 1 - done,
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "constant": 1.0,
    }[config.lr_schedule]
    return config.learning_rate * shape
