"""Evaluation: mean loss and accuracy over a data set, in a few passes over the layers."""

from collections.abc import Callable, Iterable, Iterator

from .data import Microbatch, TokenDataset, eval_microbatches
from .forward import evaluate_group
from .mover import Mover
from .packing import Arrangement
from .report import RunEvent
from .totals import Totals
from .workspace import Workspace

GROUP_SECONDS = 20.0
FORWARDS = 3  # in the time of a step, at least


def evaluate(
    work: Workspace,
    mover: Mover,
    data: TokenDataset,
    on_group: Callable[[], None] = lambda: None,
) -> Totals:
    """Evaluate the present weights, those of the last step, on all rows of `data`.

    `on_group` is called after each pass over the layers.
    """
    found = Totals()
    for group in in_groups(work, eval_microbatches(data, Arrangement.of(work.config))):
        found += evaluate_group(work, mover, group)
        on_group()
    return found


def eval_event(found: Totals, step: int) -> RunEvent:
    """An evaluation of the weights after that step as the run tells it."""
    items = "preferences" if found.rewards else "tokens"
    return RunEvent(
        type="eval",
        message=f"evaluation loss {found.loss:.4f} over {found.num_items} {items}",
        step=step,
        data={
            "eval_loss": found.loss,
            "eval_tokens": found.num_trained,
            "eval_token_accuracy": found.token_accuracy,
            **{f"eval_{name}": value for name, value in found.rewards.items()},
        },
    )


def in_groups(work: Workspace, batches: Iterable[Microbatch]) -> Iterator[list[Microbatch]]:
    """Microbatches in groups that one pass over the layers takes, within a step's memory, and not
    for much longer than GROUP_SECONDS: in the middle of a pass nothing can be said."""
    plan = work.plan
    # A training step holds the input of each layer that waits there; evaluation holds only one.
    near = plan.activation_tiers[work.spec.first_backward_layer :].count("device")
    quick = FORWARDS * GROUP_SECONDS / max(plan.forecast.step.seconds, 1e-9)
    limit = int(plan.max_step_tokens * max(1, min(near, quick)))
    group: list[Microbatch] = []
    tokens = 0
    for batch in batches:
        if group and tokens + batch.ids.numel() > limit:
            yield group
            group, tokens = [], 0
        group.append(batch)
        tokens += batch.ids.numel()
    if group:
        yield group
