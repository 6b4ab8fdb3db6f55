"""The steps of a run from where it stands to its end, in memory that is free again afterwards."""

import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .checkpoint import LoopState
from .report import Interrupted, Outcome, Poll, RunEvent, RunResult, StopReason, Watch
from .step_report import traffic
from .trainer import Trainer
from .workspace import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Where a run's steps ended, and why, if it was before the last one."""

    reason: StopReason | None
    state: LoopState
    total_steps: int

    def result(self, outcome: Outcome, export_dir: Path | None) -> RunResult:
        """How the run ended, in numbers."""
        state = self.state
        return RunResult(
            outcome=outcome,
            step=state.step,
            total_steps=self.total_steps,
            trained_tokens=state.trained_tokens,
            final_loss=state.last_loss,
            final_eval_loss=state.last_eval_loss,
            export_dir=None if export_dir is None else str(export_dir),
        )


def train(
    workspace: Callable[[], Workspace],
    make: Callable[..., Trainer],
    save: Callable[[Workspace, Path], None],
    poll: Poll,
    watch: Watch,
) -> Ended:
    """Make the memory and the trainer, and take the steps that are left or until `poll` says stop.

    `save` writes a checkpoint. When this returns, neither host nor device holds any of the memory.
    """
    ended = _train(workspace, make, save, poll, watch)
    gc.collect()  # the ring and what moves its records hold each other, and the memory
    return ended


def _train(
    workspace: Callable[[], Workspace],
    make: Callable[..., Trainer],
    save: Callable[[Workspace, Path], None],
    poll: Poll,
    watch: Watch,
) -> Ended:
    with ExitStack() as stack:
        work = stack.enter_context(workspace())
        stack.callback(watch, None)
        watch(partial(traffic, work))
        trainer = make(work, save=partial(save, work))
        reason = _steps(trainer, poll)
        return Ended(reason=reason, state=trainer.state, total_steps=trainer.total_steps)


def _steps(trainer: Trainer, poll: Poll) -> StopReason | None:
    """With an evaluation before the first step and after the last; why it stopped before that."""
    try:
        trainer.find_reference(poll)
    except Interrupted as stop:
        return stop.reason
    state = trainer.state
    if state.step == 0:
        trainer.evaluate()
        trainer.rehearse()
    elif state.step < trainer.total_steps:
        message = f"going on after step {state.step}, the last one that was committed"
        trainer.emit(RunEvent(type="message", message=message, step=state.step))
    trainer.emit(RunEvent(type="phase", message="training", step=state.step))
    reason = trainer.run(poll)
    if reason is None:
        trainer.evaluate()
    return reason
