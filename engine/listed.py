"""Listed checkpoints: when one is due, what it holds, and which of them stay."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import monotonic

from headrace.storage import TensorStore, whole_file

from .checkpoint import LoopState
from .config import TrainConfig
from .report import Emit, RunEvent

Save = Callable[[Path], None]

_NOTE = "headrace.json"  # in a checkpoint's folder: its step and evaluation loss


@dataclass(frozen=True, slots=True)
class _Found:
    step: int
    eval_loss: float | None
    path: Path


class Checkpoints:
    """The checkpoints of one run, in `run_dir/checkpoints/step-N`.

    What a run that died has left there, half written or half removed, goes at once.
    """

    def __init__(self, run_dir: Path, config: TrainConfig, *, emit: Emit, save: Save) -> None:
        self._folder = run_dir / "checkpoints"
        self._config = config
        self._emit = emit
        self._save = save
        self._written_at = monotonic()
        for pattern in (".step-*.partial", ".step-*.removed"):
            for left in self._folder.glob(pattern):
                shutil.rmtree(left)

    def due(self, step: int, total_steps: int) -> bool:
        """Whether the state after `step` is to be listed; the last one is the result itself.

        Also when it is there already: who wrote it may have died before it could say so.
        """
        if not 0 < step < total_steps:
            return False
        every, minutes = self._config.checkpoint_every_steps, self._config.checkpoint_every_minutes
        late = minutes is not None and monotonic() - self._written_at >= 60 * minutes
        return late or bool(every and step % every == 0) or self._path(step).exists()

    def write(self, state: LoopState) -> None:
        """Write the checkpoint unless it is there, tell of it, and drop those that are too many."""
        target = self._path(state.step)
        if not target.exists():
            self._emit(RunEvent(type="phase", message="writing a checkpoint", step=state.step))
            self._save(target)
        judged = state.last_eval_step == state.step  # else the loss is of earlier weights
        _write_note(target, state.step, state.last_eval_loss if judged else None)
        self._written_at = monotonic()
        self._emit(
            RunEvent(
                type="checkpoint",
                message=f"checkpoint of step {state.step} written",
                step=state.step,
                data={
                    "path": str(target),
                    "train_loss": state.last_loss,
                    "train_token_accuracy": state.last_accuracy,
                    "eval_loss": state.last_eval_loss,
                    "eval_token_accuracy": state.last_eval_accuracy,
                },
                durable=True,
            )
        )
        self._drop_others()

    def keep_commit(self, store: TensorStore) -> None:
        """Keep the newest resumable commits that checkpoints were made of."""
        if self._config.keep_commits:
            kept = [one.generation for one in store.commits() if one.kept]
            newest = sorted({*kept, store.generation})[-self._config.keep_commits :]
            store.keep_only(newest)

    def _drop_others(self) -> None:
        """The newest `keep_last` and the `keep_best` of lowest evaluation loss stay."""
        found = sorted(self._found(), key=lambda one: one.step)
        judged = [one for one in found if one.eval_loss is not None and isfinite(one.eval_loss)]
        best = sorted(judged, key=lambda one: (one.eval_loss, one.step))[: self._config.keep_best]
        for one in found[: -self._config.keep_last]:
            if one not in best:
                remove_tree(one.path)

    def _found(self) -> Iterator[_Found]:
        for path in self._folder.glob("step-*"):
            step = int(path.name.removeprefix("step-"))
            yield _Found(step, _eval_loss(path), path)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step}"


def _eval_loss(checkpoint: Path) -> float | None:
    """What the note says; None where its writer died before it was there, or with half of it."""
    try:
        loss = json.loads((checkpoint / _NOTE).read_text(encoding="utf-8"))["eval_loss"]
    except (FileNotFoundError, ValueError):
        return None
    return None if loss is None else float(loss)


def _write_note(checkpoint: Path, step: int, eval_loss: float | None) -> None:
    """Have the note on the disk, whole; also in the place of one that was lost with its writer."""
    note = json.dumps({"step": step, "eval_loss": eval_loss}, indent=2)
    with whole_file(checkpoint / _NOTE) as file:
        file.write(note.encode() + b"\n")


def remove_tree(path: Path) -> None:
    """Remove a checkpoint folder: renamed first, so that a half-removed one is never found."""
    doomed = path.with_name(f".{path.name}.removed")
    path.rename(doomed)
    shutil.rmtree(doomed)
