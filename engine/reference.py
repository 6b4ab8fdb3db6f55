"""Log-probabilities of preferences under the model before training: computed once, then kept.

They lie beside the prepared data, in a file that is named by all that decides them: the initial
weights, the tokens, and how both are computed with. So nothing that has changed can be taken for
what it was, and a run that goes on, or begins again, computes nothing twice. What is not known is
NaN: a pass that was interrupted goes on where it was.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

import numpy as np
import numpy.typing as npt
import torch

from headrace.storage import file_sha256, whole_file

from .checkpoint import LoopState
from .config import TrainConfig
from .data import Microbatch, TokenDataset, eval_microbatches
from .errors import NotFinite, StateLost
from .evaluation import in_groups
from .forward import ForwardCompute, forward_visits
from .model import RecordLayout
from .mover import Mover
from .packing import Arrangement, step_rows
from .report import Emit, Interrupted, Poll, RunEvent
from .row_order import steps_per_epoch
from .token_files import OFFSETS, TOKENS, TRAINED
from .visits import Visit
from .workspace import RingSlot, Workspace

LogProbs = npt.NDArray[np.float64]  # (preferences, 2), the chosen answers' first

SAVE_SECONDS = 60.0  # what a crash costs at most
PHASE = "reference log-probabilities"
_HOW = (  # the settings that decide how log-probabilities are computed
    "device", "compute_dtype", "frozen_format", "packing", "microbatch_tokens", "microbatch_rows",
    "batch_rows", "loss_chunk_tokens", "compile", "deterministic",
)  # fmt: skip


def with_reference(
    work: Workspace,
    mover: Mover,
    state: LoopState,
    *,
    data: TokenDataset,
    eval_data: TokenDataset | None,
    total_steps: int,
    emit: Emit,
    poll: Poll,
) -> tuple[TokenDataset, TokenDataset | None, LoopState]:
    """The data sets with the log-probabilities that a run of so many steps needs, and the state.

    Raises Interrupted when `poll` says so, NotFinite when the model gives none, StateLost when they
    are gone and the model that they are of has been trained since.
    """
    weights = state.reference or _digest(
        json.dumps(sorted(work.store.checksums().items())).encode()
    )
    found = Reference(work, mover, weights, may_compute=state.step == 0, emit=emit, poll=poll)
    data = found.added(data, trained_rows(data, work.config, total_steps))
    if eval_data is not None:
        eval_data = found.added(eval_data, range(eval_data.num_rows))
    return data, eval_data, replace(state, reference=weights)


class Reference:
    """Finds, or computes, the reference log-probabilities of data sets.

    `weights` says in few characters what the weights before training are. `may_compute`: they are
    those that are loaded.
    """

    def __init__(
        self,
        work: Workspace,
        mover: Mover,
        weights: str,
        *,
        may_compute: bool,
        emit: Emit,
        poll: Poll,
    ) -> None:
        self._work = work
        self._mover = mover
        self._weights = weights
        self._may_compute = may_compute
        self._emit = emit
        self._poll = poll

    def added(self, data: TokenDataset, rows: Collection[int]) -> TokenDataset:
        """The data set with the log-probabilities of at least these rows."""
        path = data.path / f"reference-{self._key(data)}.npy"
        found = _read(path, data.num_rows)
        wanted = np.zeros(data.num_rows, dtype=bool)
        wanted[list(rows)] = True
        missing = wanted & np.isnan(found).any(axis=1)
        if missing.any() and not self._may_compute:
            raise StateLost(
                f"the log-probabilities of {data.path} under the model before training are not in "
                f"{path.name} any more, and that model has been trained since; start a new job"
            )
        if missing.any():
            self._compute(data, found, missing, path)
        return replace(data, reference=found)

    def _key(self, data: TokenDataset) -> str:
        how: Mapping[str, object] = {name: getattr(self._work.config, name) for name in _HOW}
        text = json.dumps([self._weights, _files_id(data.path), how], sort_keys=True)
        return _digest(text.encode())

    def _compute(
        self, data: TokenDataset, found: LogProbs, missing: npt.NDArray[np.bool_], path: Path
    ) -> None:
        """Fill in what is missing, and keep it.

        Rows are taken in the file's order, with those that lie beside them: what is found does not
        depend on which are wanted.
        """
        batches = eval_microbatches(data, Arrangement.of(self._work.config), wanted=missing)
        total, saved_at = int(missing.sum()), monotonic()
        for group in in_groups(self._work, batches):
            self._say(total - int(missing.sum()), total)
            if reason := self._poll():
                _write(path, found)
                raise Interrupted(reason)
            for batch, log_probs in zip(group, self._pass(group), strict=True):
                rows = list(batch.row_indices)
                if not np.isfinite(log_probs).all():
                    raise NotFinite(
                        "before it was trained the model gives answers no finite probability, in "
                        f"rows of the data set (from 0) among {rows}"
                    )
                found[rows], missing[rows] = log_probs, False
            if monotonic() - saved_at > SAVE_SECONDS:
                _write(path, found)
                saved_at = monotonic()
        self._say(total, total)
        _write(path, found)

    def _pass(self, group: Sequence[Microbatch]) -> list[LogProbs]:
        compute = _ReferenceCompute(self._work, group)
        self._mover.pipeline.run(forward_visits(self._work), compute.visit)
        return [compute.found[m].cpu().numpy() for m in range(len(group))]

    def _say(self, done: int, total: int) -> None:
        progress = {"preferences": done, "total_preferences": total}
        self._emit(RunEvent(type="phase", message=PHASE, data=progress))


class _ReferenceCompute(ForwardCompute):
    """A forward pass that ends in the log-probabilities of the answers."""

    def __init__(self, work: Workspace, microbatches: Sequence[Microbatch]) -> None:
        super().__init__(work, microbatches)
        self.found: dict[int, torch.Tensor] = {}  # by microbatch

    def _head(self, layout: RecordLayout, visit: Visit, slot: RingSlot | None) -> None:
        for m in self.chosen(visit):
            self.found[m] = self._log_probs(m, layout, slot)


def trained_rows(data: TokenDataset, config: TrainConfig, total_steps: int) -> Collection[int]:
    """The rows that a run of so many steps comes to."""
    if total_steps >= steps_per_epoch(data.num_rows, config.batch_rows):
        return range(data.num_rows)
    arrangement = Arrangement.of(config)
    steps = range(1, total_steps + 1)
    return {int(i) for step in steps for i in step_rows(data.lengths, arrangement, step)}


def _read(path: Path, num_rows: int) -> LogProbs:
    """What is known, NaN where nothing is."""
    if not path.exists():
        return np.full((num_rows, 2), np.nan)
    found: LogProbs = np.load(path)
    return found


def _write(path: Path, found: LogProbs) -> None:
    """Put the file in place, whole and on the drive, or leave what was there."""
    with whole_file(path) as file:
        np.save(file, found)


def _files_id(folder: Path) -> str:
    """What a prepared data set's tokens are."""
    digests = [file_sha256(folder / name) for name in (TOKENS, TRAINED, OFFSETS)]
    return _digest(" ".join(digests).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
