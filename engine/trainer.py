"""The loop of a run: steps, reports, commits, evaluation and checkpoints over one workspace."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from headrace.storage import WriteBudgetSpent

from .checkpoint import LoopState
from .data import Microbatch, TokenDataset, step_microbatches
from .early_stop import judge
from .errors import NotFinite
from .evaluation import eval_event, evaluate
from .homes import Way
from .listed import Checkpoints, Save
from .lr_schedule import rate_at
from .mover import Mover
from .optimizer import AdamScalars
from .packing import Arrangement
from .pending import PendingUpdate, settle_pending
from .reference import with_reference
from .rehearsal import rehearse
from .reminder import Reminder
from .report import Emit, Poll, RunEvent, StepReport, StopReason, metrics_event
from .row_losses import open_row_losses
from .row_order import num_steps
from .samples import Sampler
from .step import StepOutcome, train_step
from .step_compute import StepInputs
from .step_spans import StepPictures
from .step_truth import StepTruth
from .ways import next_way
from .workspace import Workspace


class Trainer:
    """Runs the steps that are left, from the store's last commit on."""

    def __init__(
        self,
        work: Workspace,
        *,
        data: TokenDataset,
        eval_data: TokenDataset | None,
        emit: Emit,
        save: Save,
        run_dir: Path,
        sampler: Sampler | None = None,
    ) -> None:
        self.work = work
        self.config = work.config
        self.data = data
        self.eval_data = eval_data
        self.sampler = sampler
        self.emit = emit
        self.save = save
        self.run_dir = run_dir
        self.checkpoints = Checkpoints(run_dir, work.config, emit=emit, save=save)
        self.mover = Mover(work)
        self.mover.load_homes()
        self.state = LoopState.of(work.store, work.config)
        self.committed_step = self.state.step
        self._committed_at = monotonic()
        self.total_steps = num_steps(
            data.num_rows,
            batch_rows=self.config.batch_rows,
            num_epochs=self.config.num_epochs,
            max_steps=self.config.max_steps,
        )
        self._steps_per_epoch = num_steps(
            data.num_rows, batch_rows=self.config.batch_rows, num_epochs=1, max_steps=None
        )
        self._arrangement = Arrangement.of(self.config)
        self._row_losses = open_row_losses(run_dir, self.config, data, self.total_steps, emit)
        self._warned: dict[str, float] = {}
        self._pictures = StepPictures(run_dir)
        self._pending: PendingUpdate | None = None
        self._last_report: dict[str, Any] | None = work.store.metadata["report"]
        self._truth = StepTruth(work, emit)

    def find_reference(self, poll: Poll) -> None:
        """Of preferences: what the answers' log-probabilities were before training."""
        if self.config.objective == "dpo":
            self.data, self.eval_data, self.state = with_reference(
                self.work, self.mover, self.state, data=self.data, eval_data=self.eval_data,
                total_steps=self.total_steps, emit=self.emit, poll=poll,
            )  # fmt: skip

    def rehearse(self) -> None:
        """Before the first step: see that the largest one finds what it needs."""
        rehearse(self.work, self.mover, self.data, self.total_steps, self.emit)

    def run(self, poll: Poll) -> StopReason | None:
        """Train until the last step or until `poll` asks to stop; the end is committed."""
        # A crash after a commit may have lost what follows it; saying it twice does no harm.
        if self._last_report is not None:
            self.emit(metrics_event(self._last_report, self.total_steps))
        if self.state.step < self.total_steps:
            self._evaluate_due()
        self._checkpoint_due()
        while self.state.step < self.total_steps and not self._stops_early():
            reason = poll()
            if reason is not None:
                self._commit()
                return reason
            try:
                self._step(self.state.step + 1)
            except WriteBudgetSpent as spent:
                # Nothing of the next step was begun; raising the budget lets the run go on.
                self._warn(str(spent))
                self._commit()
                return "pause"
            self._evaluate_due()
            self._checkpoint_due()
        self._commit()
        return None

    def _step(self, step: int) -> None:
        clock = self._truth.start()
        batches = step_microbatches(self.data, self._arrangement, step=step)
        rate = rate_at(step, total_steps=self.total_steps, config=self.config)
        way, owed = self._way(), self._pending is not None
        straight_on = self._goes_straight_on(step)
        self.work.store.begin(step)
        outcome = train_step(
            self.work,
            self.mover,
            StepInputs(
                microbatches=batches,
                scalars=AdamScalars.at(
                    self.state.updates + 1, learning_rate=rate, config=self.config
                ),
                way=way,
                last_norm=self.state.last_norm,
                pending=self._pending,
                another_follows=straight_on,
            ),
        )
        self._pending = outcome.pending
        if outcome.skipped:
            self.work.store.begin(step)  # what was begun is dropped, the step still counts
        self._advance(step, outcome)
        if self._row_losses is not None and outcome.target_losses is not None:
            self._row_losses.take(step, batches, outcome.target_losses)

        def report(commit_seconds: float) -> StepReport:
            committed = commit_seconds > 0
            expected = self._truth.expected(batches, way, outcome, owed=owed, committed=committed)
            return clock.report(
                outcome,
                batches,
                step=step,
                total_steps=self.total_steps,
                epoch=step / self._steps_per_epoch,
                learning_rate=rate,
                commit_seconds=commit_seconds,
                expected=expected,
            )

        # The commit carries the report: whoever dies before it is in the log, a resume tells it.
        self._last_report = report(0.0).to_dict()
        commit_seconds = self._commit() if self._commit_due() else 0.0
        done = report(commit_seconds)
        self.emit(metrics_event(done.to_dict(), self.total_steps))
        self._truth.tell(done, clock, straight_on=straight_on)
        self._pictures.tell(done, outcome.times, clock.moved, started=clock.started)
        self._refuse_second_failure(outcome, batches)

    def _goes_straight_on(self, step: int) -> bool:
        """Whether nothing is due between this step and the next that needs the state at rest."""
        every = self.config.eval_every_steps
        return (
            step < self.total_steps
            and step - self.committed_step < self.config.commit_every_steps
            and not (every and step % every == 0)
            and not self.checkpoints.due(step, self.total_steps)
        )

    def _way(self) -> Way:
        way = self.work.plan.clip_way
        return next_way(self.config, way, clipped_last=self.state.clipped_last)

    def _advance(self, step: int, outcome: StepOutcome) -> None:
        state = self.state
        self.state = replace(
            state,
            step=step,
            updates=state.updates + (not outcome.skipped),
            skipped_in_row=state.skipped_in_row + 1 if outcome.skipped else 0,
            trained_tokens=state.trained_tokens + outcome.totals.num_trained,
            last_norm=state.last_norm if outcome.skipped else outcome.grad_norm,
            clipped_last=state.clipped_last if outcome.skipped else outcome.clipped,
            last_loss=outcome.totals.loss,
            last_accuracy=outcome.totals.token_accuracy,
        )

    def _commit_due(self) -> bool:
        step = self.state.step
        minutes = self.config.commit_every_minutes
        late = minutes is not None and monotonic() - self._committed_at >= 60 * minutes
        last = step == self.total_steps
        return last or late or step - self.committed_step >= self.config.commit_every_steps

    def _commit(self) -> float:
        """Make the last step durable; the seconds it took (0 when it is already)."""
        step = self.state.step
        if self.committed_step == step:
            return 0.0
        self.mover.host_updates.wait_all()  # what the processor still does is of the step
        started = perf_counter()
        self._settle_pending()
        self.mover.flush_homes()
        self.work.store.commit(self.state.to_metadata(self.config, self._last_report))
        self.committed_step = step
        self._committed_at = monotonic()
        self._warn_of_drives()
        seconds = perf_counter() - started
        self.emit(
            RunEvent(
                type="commit",
                message=f"step {step} is safe on the volume",
                step=step,
                data={"seconds": seconds, "generation": self.work.store.generation},
            )
        )
        return seconds

    def _refuse_second_failure(self, outcome: StepOutcome, batches: Sequence[Microbatch]) -> None:
        if not outcome.skipped:
            return
        rows = [index for batch in batches for index in batch.row_indices]
        message = (
            f"step {self.state.step}: the gradient is not finite, so nothing was updated; "
            f"rows of the data set in this step (from 0): {rows}"
        )
        if self.state.skipped_in_row >= 2:
            raise NotFinite(
                f"{message}. This is the second such step in a row: lower learning_rate, or look "
                "at these rows"
            )
        self._warn(message)

    def _settle_pending(self) -> None:
        """Leave nothing pending: what follows reads the weights after the last step."""
        if self._pending is not None:
            settle_pending(self.work, self.mover, self._pending)
            self._pending = None

    def evaluate(self) -> None:
        """Evaluate the present weights and say so, as far as there are data and prompts for it."""
        if self.eval_data is None and self.sampler is None:
            return
        self._settle_pending()
        if self.eval_data is not None:
            going_on = Reminder(self.emit, "evaluating", self.state.step)
            found = evaluate(self.work, self.mover, self.eval_data, going_on)
            self.state = replace(
                self.state, last_eval_loss=found.loss, last_eval_accuracy=found.token_accuracy
            )
            self.emit(eval_event(found, self.state.step))
        if self.sampler is not None:
            self.sampler.tell(self.work, self.mover, self.state.step)

    def _evaluate_due(self) -> None:
        every = self.config.eval_every_steps
        if every and self.state.step % every == 0 and 0 < self.state.step < self.total_steps:
            self.evaluate()
            self.state = judge(self.state, min_delta=self.config.early_stop_delta)

    def _stops_early(self) -> bool:
        """Whether the evaluation loss has not become better for as long as the job allows."""
        patience, since = self.config.early_stop_evals, self.state.evals_since_best
        if patience is None or since < patience:
            return False
        message = (
            f"stopping early at step {self.state.step} of {self.total_steps}: the best evaluation "
            f"loss, {self.state.best_eval_loss:.4f}, is {since} evaluations old"
        )
        self.emit(RunEvent(type="message", message=message, step=self.state.step))
        self.total_steps = self.state.step
        return True

    def _checkpoint_due(self) -> None:
        if self.checkpoints.due(self.state.step, self.total_steps):
            self._commit()
            self.checkpoints.write(self.state)
            self.checkpoints.keep_commit(self.work.store)

    def _warn(self, message: str) -> None:
        self.emit(RunEvent(type="message", level="warn", message=message, step=self.state.step))

    def _warn_of_drives(self) -> None:
        """Say what the store says of a slow or failing drive: once, and again when it is twice as
        bad as it was when it was said."""
        for warning in self.work.store.status().warnings:
            if warning.badness >= 2 * self._warned.get(warning.about, 0):
                self._warned[warning.about] = warning.badness
                self._warn(warning.text)
