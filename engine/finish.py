"""The end of a run: what it trained is exported, read back, compared, and told."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.storage import HostArena, TensorStore

from .config import TrainConfig
from .data import TokenDataset
from .export_check import NUM_PROMPTS, PROMPT_TOKENS, mismatch, put_aside, write_report
from .export_forms import ExportForm
from .model import ModelSpec
from .report import Emit, RunEvent
from .store_export import check_store, export_store
from .workspace import Workspace


def prompts_of(data: TokenDataset) -> list[Tensor]:
    """Beginnings of the first, the middle and the last row of the data, int64 (tokens,)."""
    rows = [data.num_rows * i // (NUM_PROMPTS - 1) for i in range(NUM_PROMPTS)]
    found = [data.answers(min(i, data.num_rows - 1))[0][0] for i in rows]
    return [torch.from_numpy(ids[:PROMPT_TOKENS].copy()) for ids in found]


class Exporter:
    """Writes a run's exports when its own memory has been given back; one record at a time."""

    def __init__(
        self,
        store: TensorStore,
        spec: ModelSpec,
        config: TrainConfig,
        *,
        slot_bytes: int,
        run_dir: Path,
    ) -> None:
        self._store = store
        self._spec = spec
        self._config = config
        self._slot_bytes = slot_bytes
        self._run_dir = run_dir

    def listed(self, form: ExportForm) -> Callable[[Workspace, Path], None]:
        """What writes a checkpoint while the run goes on: in that form, within the run's memory."""

        def save(work: Workspace, target: Path) -> None:
            with work.staging.borrow() as staging:
                export_store(self._store, self._spec, staging.slot, form, target)

        return save

    def export_all(
        self, forms: Sequence[ExportForm], prompts: Sequence[Tensor], emit: Emit, *, step: int
    ) -> Path:
        """Make each export and tell of them; the folder of the first. Raises ExportMismatch."""
        made = [self._export(form, prompts, emit, step) for form in forms]
        where = "; ".join(f"the {_NAMES[one['format']]} is in {one['path']}" for one in made)
        data = {"path": made[0]["path"], "exports": made}
        emit(RunEvent(type="export", message=where, step=step, data=data, durable=True))
        return self._run_dir / forms[0].folder

    def _export(
        self, form: ExportForm, prompts: Sequence[Tensor], emit: Emit, step: int
    ) -> dict[str, Any]:
        """Write it unless it is there, read it back; its report, with its path."""
        target = self._run_dir / form.folder
        with HostArena(self._slot_bytes) as arena:
            slot = arena.carve(self._slot_bytes)
            if not target.exists():
                emit(RunEvent(type="phase", message="exporting", step=step))
                export_store(self._store, self._spec, slot, form, target)
            found = None
            if self._config.check_export:
                emit(RunEvent(type="phase", message="reading the export back", step=step))
                found = check_store(
                    self._store, self._spec, slot, form, target,
                    prompts=prompts, device=torch.device(self._config.device),
                )  # fmt: skip
            del slot
        report = write_report(target, form, found, step=step)
        if found is not None and not found.matches:
            error = mismatch(target, form, found, hint=_HINT)
            put_aside(target, target)
            raise error
        return {**report, "path": str(target)}


_HINT = (
    "The training state is kept: look at the drive that holds the export, then resume the job, "
    "which exports again"
)
_NAMES = {"hf": "fine-tuned model", "adapter": "adapter", "gguf": "GGUF file"}
