"""The loop of a run: steps, reports, commits, evaluation and checkpoints over one workspace."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import psutil
import torch

from headrace.storage import LinkStats

from .checkpoint import LoopState
from .data import Microbatch, TokenDataset, eval_microbatches, num_steps, step_microbatches
from .lr_schedule import rate_at
from .mover import Mover
from .optimizer import AdamScalars
from .plan import Way
from .report import Emit, LinkReport, Poll, RunEvent, StepReport, StopReason
from .step import StepInputs, StepOutcome, evaluate_group, train_step
from .workspace import Workspace

Save = Callable[[Path], None]


class NotFinite(RuntimeError):
    """Two steps in a row had a gradient that is not finite; the weights are those before them."""


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
    ) -> None:
        self.work = work
        self.config = work.config
        self.data = data
        self.eval_data = eval_data
        self.emit = emit
        self.save = save
        self.run_dir = run_dir
        self.mover = Mover(work)
        self.mover.load_homes()
        self.state = LoopState.of(work.store, work.config)
        self.committed_step = self.state.step
        self.total_steps = num_steps(
            data.num_rows,
            batch_rows=self.config.batch_rows,
            num_epochs=self.config.num_epochs,
            max_steps=self.config.max_steps,
        )
        self._commit_seconds = 0.0
        self._clipped_last = True  # a first step usually clips: do not bet on the contrary
        self._process = psutil.Process()

    def run(self, poll: Poll) -> StopReason | None:
        """Train until the last step or until `poll` asks to stop; the end is committed."""
        self._checkpoint_due()  # a crash between a commit and its checkpoint owes the latter
        while self.state.step < self.total_steps:
            reason = poll()
            if reason is not None:
                self._commit()
                return reason
            self._step(self.state.step + 1)
            self._evaluate_due()
            self._checkpoint_due()
        return None

    def _step(self, step: int) -> None:
        before = self._links()
        started = perf_counter()
        batches = step_microbatches(
            self.data,
            step=step,
            batch_rows=self.config.batch_rows,
            microbatch_rows=self.config.microbatch_rows,
            seed=self.config.seed,
        )
        rate = rate_at(step, total_steps=self.total_steps, config=self.config)
        self.work.store.begin(step)
        outcome = train_step(
            self.work,
            self.mover,
            StepInputs(
                microbatches=batches,
                scalars=AdamScalars.at(
                    self.state.updates + 1, learning_rate=rate, config=self.config
                ),
                way=self._way(),
                last_norm=self.state.last_norm,
            ),
        )
        if outcome.skipped:
            self.work.store.begin(step)  # what was written is dropped, the step still counts
        num_tokens = sum(batch.num_tokens for batch in batches)
        self._advance(step, outcome)
        report = self._report(outcome, num_tokens, rate, perf_counter() - started, before)
        commit = self._commit_due()
        # The report is on disk before the commit: whoever dies between them redoes the step
        # under the same number, and its report replaces this one.
        self._emit_report(report, durable=commit)
        if commit:
            self._commit()
        self._refuse_second_failure(outcome, batches)

    def _way(self) -> Way:
        """Bet on no clipping only when the last step was not clipped."""
        if self.work.plan.clip_way == "auto":
            return "serial" if self._clipped_last else "speculative"
        return self.work.plan.clip_way

    def _advance(self, step: int, outcome: StepOutcome) -> None:
        state = self.state
        if not outcome.skipped:
            self._clipped_last = outcome.clipped
        self.state = replace(
            state,
            step=step,
            updates=state.updates + (not outcome.skipped),
            skipped_in_row=state.skipped_in_row + 1 if outcome.skipped else 0,
            trained_tokens=state.trained_tokens + outcome.num_trained,
            last_norm=state.last_norm if outcome.skipped else outcome.grad_norm,
            last_loss=outcome.loss_sum / max(1, outcome.num_trained),
        )

    def _commit_due(self) -> bool:
        step = self.state.step
        last = step == self.total_steps
        return last or step - self.committed_step >= self.config.commit_every_steps

    def _commit(self) -> None:
        if self.committed_step == self.state.step:
            return
        started = perf_counter()
        before = self._links()["nvme_write"]
        self.mover.flush_homes()
        self.work.store.commit(self.state.to_metadata(self.config))
        self.committed_step = self.state.step
        self._commit_seconds = perf_counter() - started
        self.emit(
            RunEvent(
                type="commit",
                message=f"step {self.state.step} is safe on the volume",
                step=self.state.step,
                data={
                    "seconds": self._commit_seconds,
                    "generation": self.work.store.generation,
                    "flushed_bytes": (self._links()["nvme_write"] - before).payload_bytes,
                },
            )
        )

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
        self.emit(RunEvent(type="message", level="warn", message=message, step=self.state.step))

    def evaluate(self) -> float | None:
        """Mean loss per trained token over the evaluation data; None when there is none."""
        if self.eval_data is None:
            return None
        self.emit(RunEvent(type="phase", message="evaluating", step=self.state.step))
        loss, correct, count = 0.0, 0, 0
        for group in self._eval_groups(self.eval_data):
            sums = evaluate_group(self.work, self.mover, group)
            loss += float(sums.loss)
            correct += int(sums.correct)
            count += sums.num_trained
        mean = loss / max(1, count)
        self.state = replace(self.state, last_eval_loss=mean)
        self.emit(
            RunEvent(
                type="eval",
                message=f"evaluation loss {mean:.4f} over {count} tokens",
                step=self.state.step,
                data={
                    "eval_loss": mean,
                    "eval_tokens": count,
                    "eval_token_accuracy": correct / max(1, count),
                },
            )
        )
        return mean

    def _eval_groups(self, data: TokenDataset) -> list[list[Microbatch]]:
        """Microbatches in groups that one pass over the layers takes, within a step's memory."""
        groups: list[list[Microbatch]] = [[]]
        tokens = 0
        for batch in eval_microbatches(data, microbatch_rows=self.config.microbatch_rows):
            size = batch.ids.numel()
            if groups[-1] and tokens + size > self._eval_group_tokens():
                groups.append([])
                tokens = 0
            groups[-1].append(batch)
            tokens += size
        return groups

    def _eval_group_tokens(self) -> int:
        # A training step holds one boundary activation per layer; evaluation holds only one.
        plan = self.work.plan
        layers = self.work.spec.num_layers if plan.activation_tier == "device" else 1
        return plan.max_step_tokens * layers

    def _evaluate_due(self) -> None:
        every = self.config.eval_every_steps
        if every and self.state.step % every == 0 and self.state.step < self.total_steps:
            self.evaluate()

    def _checkpoint_due(self) -> None:
        every = self.config.checkpoint_every_steps
        step = self.state.step
        if not every or step == 0 or step % every or step == self.total_steps:
            return
        target = self.run_dir / "checkpoints" / f"step-{step}"
        if target.exists():
            return
        self._commit()
        self.emit(RunEvent(type="phase", message="writing a checkpoint", step=step))
        self.save(target)
        self.emit(
            RunEvent(
                type="checkpoint",
                message=f"checkpoint of step {step} written",
                step=step,
                data={
                    "path": str(target),
                    "train_loss": self.state.last_loss,
                    "eval_loss": self.state.last_eval_loss,
                },
                durable=True,
            )
        )
        self._drop_old_checkpoints()

    def _drop_old_checkpoints(self) -> None:
        folder = self.run_dir / "checkpoints"
        steps = sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))
        for step in steps[: -self.config.keep_last]:
            remove_tree(folder / f"step-{step}")

    def _links(self) -> dict[str, LinkStats]:
        return {**self.work.store.stats().links, **self.work.transfer.stats()}

    def _emit_report(self, report: StepReport, *, durable: bool) -> None:
        self.emit(
            RunEvent(
                type="metrics",
                message=(
                    f"Step {report.step}/{report.total_steps}: training loss={report.loss:.4f}"
                ),
                step=report.step,
                data=report.to_dict(),
                durable=durable,
            )
        )

    def _report(
        self,
        outcome: StepOutcome,
        num_tokens: int,
        rate: float,
        seconds: float,
        before: dict[str, LinkStats],
    ) -> StepReport:
        links = {
            name: LinkReport(
                payload_bytes=(delta := stats - before[name]).payload_bytes,
                padding_bytes=delta.padding_bytes,
                operations=delta.operations,
                busy_seconds=delta.busy_seconds,
            )
            for name, stats in self._links().items()
        }
        times = [t for _, t in outcome.times]
        steps_per_epoch = num_steps(
            self.data.num_rows, batch_rows=self.config.batch_rows, num_epochs=1, max_steps=None
        )
        cuda = self.work.device.type == "cuda"
        return StepReport(
            step=self.state.step,
            total_steps=self.total_steps,
            epoch=self.state.step / steps_per_epoch,
            loss=outcome.loss_sum / max(1, outcome.num_trained),
            grad_norm=outcome.grad_norm,
            clip_factor=outcome.clip_factor,
            learning_rate=rate,
            skipped=outcome.skipped,
            num_tokens=num_tokens,
            num_trained_tokens=outcome.num_trained,
            token_accuracy=outcome.num_correct / max(1, outcome.num_trained),
            step_seconds=seconds,
            forward_seconds=outcome.forward_seconds,
            backward_seconds=outcome.backward_seconds,
            optimizer_seconds=outcome.optimizer_seconds,
            commit_seconds=self._commit_seconds,
            stall_read_seconds=sum(t.stall_read for t in times),
            stall_write_seconds=sum(t.stall_write for t in times),
            links=links,
            rss_bytes=self._process.memory_info().rss,
            device_peak_bytes=torch.cuda.max_memory_allocated() if cuda else 0,
        )


def remove_tree(path: Path) -> None:
    """Remove a checkpoint folder: renamed first, so that a half-removed one is never found."""
    doomed = path.with_name(f".{path.name}.removed")
    path.rename(doomed)
    shutil.rmtree(doomed)
