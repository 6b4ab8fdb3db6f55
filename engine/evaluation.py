"""Evaluation: mean loss and accuracy over a data set, in a few passes over the layers."""

from collections.abc import Iterator
from dataclasses import dataclass

from .data import Microbatch, TokenDataset, eval_microbatches
from .forward import evaluate_group
from .mover import Mover
from .packing import Arrangement
from .workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Means over the trained tokens of a data set."""

    loss: float
    token_accuracy: float
    num_trained: int


def evaluate(work: Workspace, mover: Mover, data: TokenDataset) -> Evaluation:
    """Evaluate the present weights, those of the last step, on all rows of `data`."""
    loss, correct, count = 0.0, 0, 0
    for group in _groups(work, data):
        sums = evaluate_group(work, mover, group)
        loss += float(sums.loss)
        correct += int(sums.correct)
        count += sums.num_trained
    return Evaluation(
        loss=loss / max(1, count), token_accuracy=correct / max(1, count), num_trained=count
    )


def _groups(work: Workspace, data: TokenDataset) -> Iterator[list[Microbatch]]:
    """Microbatches in groups that one pass over the layers takes, within a step's memory."""
    # A training step holds the input of each layer that waits there; evaluation holds only one.
    near = work.plan.activation_tiers[work.spec.first_backward_layer :].count("device")
    limit = work.plan.max_step_tokens * max(1, near)
    group: list[Microbatch] = []
    tokens = 0
    for batch in eval_microbatches(data, Arrangement.of(work.config)):
        if group and tokens + batch.ids.numel() > limit:
            yield group
            group, tokens = [], 0
        group.append(batch)
        tokens += batch.ids.numel()
    yield group
