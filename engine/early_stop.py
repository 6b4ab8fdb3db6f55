"""Early stopping: which evaluation was the best, and how many have passed since. Pure."""

from dataclasses import replace
from math import isfinite

from .checkpoint import LoopState


def judge(state: LoopState, *, min_delta: float) -> LoopState:
    """The state with its newest evaluation counted, once however often it is done.

    Better is a finite loss that is lower than the best one by more than `min_delta`. An evaluation
    between two commits is done again after a crash, from a state that may or may not count it.
    """
    loss, best = state.last_eval_loss, state.best_eval_loss
    if loss is None or state.last_eval_step >= state.step:
        return state
    better = isfinite(loss) and (best is None or loss < best - min_delta)
    return replace(
        state,
        last_eval_step=state.step,
        best_eval_loss=loss if better else best,
        evals_since_best=0 if better else state.evals_since_best + 1,
    )
